"""The same job on every engine, as a user starts it: command lines, real clusters, and kills at a chosen sample."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import required
from harness.clusters import dask_cluster, import_path
from harness.slurm import Slurm, slurm
from tarmac.jobs.engines import Engine, Finished, Work
from tarmac.jobs.task import Unit
from tarmac.tools.jobs import SlurmOptions, slurm_script

ENGINES = ("local-1", "local-2", "dask", "ray", "spark", "slurm", "tasks")
TASKS = 4
FUNCTION = '''
"""Change a text, count the calls, and kill the job at the call that the file `bomb` names."""
import os, signal
from pathlib import Path

HERE = Path(__file__).parent

def work(sample):
    with open(HERE / "calls", "a") as calls:
        calls.write(sample["__key__"] + "\\n")
    try:
        count, driver = (HERE / "bomb").read_text().split()
        if len((HERE / "calls").read_text().split()) >= int(count):
            (HERE / "bomb").unlink()
            os.killpg(int(driver) or os.getpgrp(), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        pass
    return sample | {"txt": sample["txt"].upper()}

def mortal(sample):
    """Kill the worker at samples for which there is a file in `bombs`, each once."""
    try:
        (HERE / "bombs" / sample["__key__"].replace("/", "-")).unlink()
    except FileNotFoundError:
        return work(sample)
    os.kill(os.getpid(), signal.SIGKILL)
'''


@dataclass
class Anywhere:
    """Clusters, and a directory in which jobs run."""

    folder: Path
    dask: str
    slurm: Slurm
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, engine: str, command: Sequence[str], bomb: int = 0, tasks: int = TASKS) -> bool:
        """Run a command of tarmac on an engine; with `bomb`, kill the job at this call. Return whether it succeeded.

        `tasks` is their number in plain processes and in Slurm.
        """
        if engine == "tasks":
            return self._tasks(command, bomb, tasks)
        if engine == "slurm":
            self._arm(bomb, 0)
            return self._array(command, tasks)
        options = {
            "local-1": ["-j", "1"],
            "local-2": ["-j", "2"],
            "dask": ["--engine", self.dask],
            "ray": ["--engine", "ray", "-j", "2"],
            "spark": ["--engine", "spark", "-j", "2"],
        }[engine]
        process = self._start([*command, *options])
        self._arm(bomb, process.pid)
        return self._ended(process)

    def _tasks(self, command: Sequence[str], bomb: int, count: int) -> bool:
        """Run tasks in plain processes, each in a group of its own, of which one is killed."""
        self._arm(bomb, 0)
        tasks = [self._start([*command, "--task", f"{number}/{count}", "-j", "1"]) for number in range(count)]
        succeeded = [self._ended(task) for task in tasks]  # all of them end
        return all(succeeded)

    def _array(self, command: Sequence[str], tasks: int) -> bool:
        script = slurm_script([sys.executable, "-m", "tarmac", *command], SlurmOptions(tasks=tasks))
        with contextlib.ExitStack() as stack:
            for name, value in {"PYTHONPATH": import_path(), **self.environment}.items():
                before = os.environ.get(name)
                os.environ[name] = value
                stack.callback(os.environ.pop if before is None else os.environ.__setitem__, name, before)
            states = self.slurm.wait(self.slurm.sbatch(script, cwd=self.folder))
        self.logs = "\n".join(path.read_text() for path in sorted(self.folder.glob("*_*.log")))
        return set(states.values()) == {"COMPLETED"}

    def _arm(self, bomb: int, driver: int) -> None:
        if bomb:
            (self.folder / "bomb.new").write_text(f"{bomb} {driver}")
            os.replace(self.folder / "bomb.new", self.folder / "bomb")

    def _start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": import_path(), **self.environment}
        return subprocess.Popen(
            [sys.executable, "-m", "tarmac", *command],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _ended(self, process: subprocess.Popen[str]) -> bool:
        self.logs, _ = process.communicate()
        with contextlib.suppress(ProcessLookupError):  # what a killed driver has left in its group
            os.killpg(process.pid, signal.SIGKILL)
        return process.returncode == 0

    def calls(self) -> list[str]:
        """Return the keys that functions were called with since the last time."""
        path = self.folder / "calls"
        keys = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return keys


@dataclass
class Twice:
    """An engine that delivers every unit twice, at the same time if it has two workers."""

    inner: Engine

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Finished]:
        return self.inner.run(work, (unit for unit in units for _ in range(2)))


@contextlib.contextmanager
def anywhere(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Anywhere]:
    """Start a Dask cluster and a Slurm; the other engines start with their jobs."""
    settings = dict(environment or {})
    with required(slurm()) as array, required(dask_cluster(2, settings)) as dask:
        (folder / "functions.py").write_text(FUNCTION)
        yield Anywhere(folder, dask.engine, array, settings)
