"""What must hold for every engine that runs units elsewhere, through the public functions and the command line."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tarmac
from harness.clusters import import_path
from harness.waiting import until
from tarmac.errors import EngineError, NotPicklable, WorkerDied
from tarmac.jobs.engines import Finished, Work, make_engine
from tarmac.jobs.task import Outcome, Unit
from tarmac.tools.jobs import status

TESTS = str(Path(__file__).parents[1])
FUNCTIONS = '''
"""Functions of a file that workers see."""
import os, signal, time
from pathlib import Path

def shout(sample):
    return sample | {"txt": sample["txt"].upper()}

def dies_once(sample):
    """Kill the worker in the middle of a unit, the first time."""
    if sample["__key__"] == "0302":
        try:
            Path(__file__).with_name("killed").touch(exist_ok=False)
        except FileExistsError:
            return shout(sample)
        os.kill(os.getpid(), signal.SIGKILL)
    return shout(sample)

def waits(sample):
    """Wait until the worker is killed."""
    Path(__file__).with_name("reached").touch()
    time.sleep(10_000)

def dies(sample):
    if sample["__key__"] == "0302" and not Path(__file__).with_name("cured").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return shout(sample)

class Device:
    """A function with a model."""
    def setup(self, device):
        self.device = device
        self.log(f"setup {os.getpid()} {device}")
    def __call__(self, sample):
        return sample | {"device": self.device.encode()}
    def close(self):
        self.log(f"close {os.getpid()}")
    def log(self, line):
        with Path(__file__).with_name("log").open("a") as log:
            log.write(line + "\\n")
'''


def make_shards(folder: Path, shards: int = 6, samples: int = 4) -> str:
    """Write shards and a file of functions; return the pattern of the shards."""
    for shard in range(shards):
        with tarmac.TarWriter(folder / f"in-{shard:02d}.tar") as writer:
            for number in range(samples):
                writer.write({"__key__": f"{shard:02d}{number:02d}", "txt": f"text {number}", "cls": number})
    (folder / "functions.py").write_text(FUNCTIONS)
    return str(folder / "in-*.tar")


def digests(folder: Path) -> dict[str, str]:
    """Return the digests of all shards and manifests of an output."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".tar", ".json")]
    files = [path for path in files if ".tarmac" not in path.parts]
    assert files
    return {
        str(path.relative_to(folder)): hashlib.sha256(
            path.read_bytes().replace(bytes(folder), b"")
        ).hexdigest()
        for path in files
    }


def check_same_bytes(engine: str, folder: Path, monkeypatch: Any) -> None:
    """One map in Python and one copy on the command line, both with relative paths: the bytes of local -j1."""
    make_shards(folder)
    monkeypatch.chdir(folder)

    def run_map(output: str, **options: Any) -> tarmac.Report:
        return tarmac.map(
            "in-*.tar", output, lambda s: s | {"n": b"1"}, manifest=f"{output}m.json", **options
        )

    run_map("map-local/", jobs=1)
    report = run_map("map-engine/", engine=engine)
    assert (report.units, report.done, report.written) == (6, 6, 24)
    assert digests(folder / "map-engine") == digests(folder / "map-local")
    again = run_map("map-engine/", engine=engine)
    assert (again.done, again.kept) == (0, 6)

    tarmac.copy("in-*.tar", "copy-local/{i}.tar", max_samples=5, jobs=1, shuffle=True)
    arguments = ["copy", "in-*.tar", "-o", "copy-engine/{i}.tar", "--max-samples", "5", "--shuffle"]
    done = command([*arguments, "--engine", engine], folder)
    assert done.returncode == 0, done.stderr
    assert digests(folder / "copy-engine") == digests(folder / "copy-local")


def check_number_of_workers(engine: str, folder: Path) -> None:
    """Units know that the engine has two workers, however many of them there are."""
    (folder / "counting.py").write_text(
        "from tarmac.runtime.crew import workers_at_once\n"
        "def count(sample):\n"
        "    return sample | {'n': str(workers_at_once(0)).encode()}\n"
    )
    tarmac.map(make_shards(folder), f"{folder}/out/", f"{folder}/counting.py:count", engine=engine)
    assert {sample["n"] for sample in tarmac.read(f"{folder}/out/*.tar")} == {b"2"}


def command(arguments: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line, which has no terminal."""
    return script(["-m", "tarmac", *arguments], folder, **environment)


def script(arguments: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a directory."""
    settings = {**os.environ, "PYTHONPATH": import_path(TESTS), **environment}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=settings, capture_output=True, text=True
    )


def start_command(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start the command line and do not wait for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "tarmac", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": import_path(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


MAIN = """
import sys
import psutil, tarmac

def louder(sample):
    return sample | {"txt": sample["txt"].upper() + MARK}

MARK = b"!"

if __name__ == "__main__":
    report = tarmac.map("in-*.tar", "main/", louder, engine=sys.argv[1], jobs=2, device="cpu:0,cpu:1")
    assert report.written == 24
    assert next(iter(tarmac.read("main/in-00.tar")))["txt"] == b"TEXT 0!"
    left = [each for each in psutil.Process().children(recursive=True) if "resource_tracker" not in str(each.cmdline())]
    assert not left, left
"""


def check_main(engine: str, folder: Path, **environment: str) -> None:
    """A function of `__main__` travels by value, and a cluster that the engine started ends with the job."""
    make_shards(folder)
    (folder / "program.py").write_text(MAIN)
    done = script(["program.py", engine], folder, **environment)
    assert done.returncode == 0, done.stderr


def check_errors_of_functions(engine: str, folder: Path, monkeypatch: Any) -> None:
    """What workers cannot run is an error that names it, and nothing is written."""
    shards = make_shards(folder)
    lock = threading.Lock()
    with pytest.raises(NotPicklable, match="lock"):
        tarmac.map(shards, f"{folder}/a/", lambda sample: lock and sample, engine=engine)
    (folder / "only_here.py").write_text("def function(sample):\n    return sample\n")
    monkeypatch.syspath_prepend(folder)
    import only_here

    with pytest.raises(EngineError, match=r"worker on .* cannot import only_here"):
        tarmac.map(shards, f"{folder}/b/", only_here.function, engine=engine)
    monkeypatch.delitem(sys.modules, "only_here")
    tarmac.map(shards, f"{folder}/b/", f"{folder}/only_here.py:function", engine=engine)  # what the hint says


def check_versions(engine: str, folder: Path, monkeypatch: Any) -> None:
    """A worker compares versions before it loads anything."""
    from tarmac.jobs.engines import dask, ray, remote, spark

    shards, truth = make_shards(folder), remote.sender
    for name, version in (("python", "3.99"), ("tarmac", "99.0")):
        for module in (dask, ray, spark):
            monkeypatch.setattr(module, "sender", lambda device, n=name, v=version: {**truth(device), n: v})
        with pytest.raises(EngineError, match=rf"worker on .* has {name} .* {version}") as caught:
            tarmac.copy(shards, f"{folder}/{name}/", engine=engine)
        assert "same versions" in str(caught.value)
        assert not list(folder.glob(f"{name}/*.tar"))


def check_killed_worker(engine: str, folder: Path) -> None:
    """A worker that is killed in a unit is an error of that unit at most; running the job again completes it."""
    shards, function = make_shards(folder), f"{folder}/functions.py"
    tarmac.map(shards, f"{folder}/local/", f"{function}:shout", jobs=1)
    with pytest.raises(WorkerDied):
        tarmac.map(shards, f"{folder}/out/", f"{function}:dies", engine=engine)
    (folder / "cured").touch()
    tarmac.map(shards, f"{folder}/out/", f"{function}:dies", engine=engine)
    assert digests(folder / "out") == digests(folder / "local")


class Twice:
    """An engine that delivers every unit twice, at the same time if there are two workers."""

    def __init__(self, name: str, jobs: int = 2) -> None:
        self.inner = make_engine(name, jobs)

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Finished]:
        seen = set()
        for unit, outcome in self.inner.run(work, (unit for unit in units for _ in range(2))):
            assert isinstance(outcome, Outcome), outcome
            if unit.name not in seen:
                seen.add(unit.name)
                yield unit, outcome


def check_two_deliveries(engine: str, folder: Path) -> None:
    """The same unit in two places at the same time gives the same file."""
    shards, function = make_shards(folder), f"{folder}/functions.py:shout"
    tarmac.map(shards, f"{folder}/local/", function, jobs=1)
    tarmac.map(shards, f"{folder}/out/", function, engine=Twice(engine))
    assert digests(folder / "out") == digests(folder / "local")


def check_lazy(engine: str, folder: Path) -> None:
    """Units are taken as workers become free, and those that have not started never run after the end."""
    taken: list[int] = []

    def endless() -> Iterator[Unit]:
        for number in range(10**6):
            taken.append(number)
            yield Unit(f"{folder}/{number}", number)

    running = make_engine(engine, 2).run(lambda unit: Outcome(read=unit.content), endless())
    for _ in range(5):
        unit, outcome = next(running)
        assert isinstance(outcome, Outcome)
        assert outcome.read == unit.content
    running.close()  # type: ignore[attr-defined]
    assert len(taken) < 20


def check_signal(engine: str, folder: Path, number: signal.Signals) -> None:
    """A job that a signal ends says so in one line, has the status of the signal, and holds no leases."""
    make_shards(folder)
    arguments = ["map", "in-*.tar", "--py", "functions.py:waits", "-o", "out/", "--engine", engine, "-j", "1"]
    process = start_command(arguments, folder)
    assert until(lambda: (folder / "reached").exists() or process.poll() is not None)
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 128 + number, said
    assert "interrupted; run the same command again" in said
    assert not [text for text in ("Traceback", "SIGTERM received") if text in said], said
    (job,) = status(folder / "out")
    assert (job.units, job.running, job.dead, job.missing) == (6, [], [], 6)
