"""A real Slurm on loopback: munged, slurmctld and slurmd in a temporary directory.

    with required(slurm()) as cluster:
        job = cluster.sbatch(script)
        cluster.wait(job)
        assert cluster.states(job) == {0: "COMPLETED"}

There is one node with four slots, however many cores the machine has.
Debian's packages slurm-wlm and munge have all programs. Everything ends with the context, and nothing listens on
another interface than loopback.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness import MissingComponent, ServerFailed, reserved_ports
from harness.waiting import TIMEOUT, gone, until

NODE, SLOTS = "node", 4
FINAL = frozenset(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"))
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
_CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
ReturnToService=2
MinJobAge=86400
KillWait=30
MaxArraySize=1001
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={slots} State=UNKNOWN
PartitionName=main Nodes={name} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A running cluster: submit scripts, wait for them, and ask for the states of their tasks."""

    home: Path

    def environ(self) -> dict[str, str]:
        """Return the environment of programs that use this cluster."""
        others = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))
        }
        return others | {"SLURM_CONF": str(self.home / "slurm.conf"), "PATH": _PATH}

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Run a program of Slurm and return what it prints."""
        done = subprocess.run(
            command, env=self.environ(), cwd=cwd, capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
        if done.returncode:
            raise ServerFailed(f"{' '.join(command)}: {done.stderr or done.stdout}")
        return done.stdout

    def sbatch(self, script: str | Path, *options: str, cwd: Path | None = None) -> int:
        """Submit a script, given as text or as a file, and return the number of the job."""
        if isinstance(script, str):
            with tempfile.NamedTemporaryFile("w", dir=self.home, suffix=".sh", delete=False) as file:
                file.write(script)
            script = Path(file.name)
        return int(self.run("sbatch", "--parsable", *options, str(script), cwd=cwd).partition(";")[0])

    def tasks(self, job: int) -> list[dict[str, str]]:
        """Return what `scontrol` shows of each task of a job; tasks of an array that wait are one entry."""
        lines = self.run("scontrol", "--oneliner", "show", "job", str(job)).splitlines()
        pairs = (re.findall(r"(?:^| )(\w+(?:/\w+)?)=(\S*)", line) for line in lines if line)
        return [dict(each) for each in pairs]

    def states(self, job: int) -> dict[int, str]:
        """Return the states of tasks that have started, by their index: `{0: "COMPLETED", 1: "RUNNING"}`."""
        indexes = ((task.get("ArrayTaskId", "0"), task["JobState"]) for task in self.tasks(job))
        return {int(index): state for index, state in indexes if index.isdigit()}

    def restarts(self, job: int) -> dict[int, int]:
        """Return how often each task was requeued."""
        return {int(task.get("ArrayTaskId", "0")): int(task["Restarts"]) for task in self.tasks(job)}

    def wait(self, job: int, patience: float = TIMEOUT) -> dict[int, str]:
        """Wait until no task waits or runs, and return their states. Requeued tasks start without a delay."""

        def ended() -> bool:
            tasks = self.tasks(job)
            for task in tasks:
                if task["JobState"] == "PENDING" and task.get("Reason") == "BeginTime":
                    self.start_now(task["JobId"])
            return all(task["JobState"] in FINAL for task in tasks)

        if not until(ended, patience, 0.1):
            raise ServerFailed(f"job {job} did not end: {self.tasks(job)}")
        return self.states(job)

    def start_now(self, task: str) -> None:
        """Start a requeued task now: Slurm lets it wait for two minutes, in case that its node is broken."""
        with contextlib.suppress(ServerFailed):  # it has started meanwhile
            self.run("scontrol", "update", f"JobId={task}", "StartTime=now")

    def cancel(self, *options: str) -> None:
        """Cancel jobs: `scancel` with these options."""
        self.run("scancel", *options)

    def requeue(self, job: int | str) -> None:
        """End a job or a task, and run it again."""
        self.run("scontrol", "requeue", str(job))


@contextmanager
def slurm() -> Iterator[Slurm]:
    """Run a cluster of one node with four slots until the context exits."""
    programs = {name: shutil.which(name, path=_PATH) for name in ("munged", "slurmctld", "slurmd", "sbatch")}
    for name, package in {"munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm"}.items():
        if programs[name] is None:
            raise MissingComponent(f"{name} is not installed: install the system package {package}")
    with (
        tempfile.TemporaryDirectory(prefix="tarmac-slurm-", ignore_cleanup_errors=True) as folder,
        reserved_ports(2) as (controller, node),
    ):
        home = Path(folder)
        cluster = Slurm(home)
        names = {"host": socket.gethostname().partition(".")[0], "user": getpass.getuser(), "name": NODE}
        text = _CONF.format(home=home, controller=controller, node=node, slots=SLOTS, **names)
        (home / "slurm.conf").write_text(text)
        for directory in ("state", "spool"):
            (home / directory).mkdir()
        home.chmod(0o755)  # munged refuses a socket that others cannot reach
        (home / "munge.key").write_bytes(os.urandom(128))
        (home / "munge.key").chmod(0o600)
        daemons = []
        try:
            daemons.append(_start(cluster, "munged", "--foreground", *_munge_files(home)))
            _ready(cluster, "munged", lambda: (home / "munge.socket").exists())
            daemons.append(_start(cluster, "slurmctld", "-D"))
            daemons.append(_start(cluster, "slurmd", "-D", "-N", NODE))
            _ready(cluster, "slurmctld", lambda: "idle" in cluster.run("sinfo", "--noheader", "--format=%T"))
            yield cluster
        finally:
            _end(cluster)
            for daemon in daemons:
                daemon.wait()


def _munge_files(home: Path) -> Iterator[str]:
    yield f"--socket={home}/munge.socket"
    for name in ("key", "pid", "log", "seed"):
        yield f"--{name}-file={home}/munge.{name}"


def _start(cluster: Slurm, *command: str) -> subprocess.Popen[bytes]:
    with (cluster.home / f"{command[0]}.out").open("wb") as output:
        return subprocess.Popen(
            command, env=cluster.environ(), cwd=cluster.home, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip


def _ready(cluster: Slurm, name: str, answers: Callable[[], object]) -> None:
    def check() -> bool:
        with contextlib.suppress(ServerFailed):
            return bool(answers())
        return False

    if not until(check, TIMEOUT, 0.05):
        logs = [path.read_text(errors="replace")[-2000:] for path in cluster.home.glob(f"{name}.[ol]*")]
        raise ServerFailed(f"{name} did not start:\n{''.join(logs)}")


def _end(cluster: Slurm) -> None:
    """Kill daemons, steps and jobs. Steps leave their session, but all have the configuration in their environment."""
    for _ in range(10):  # a daemon may start a step meanwhile
        left = list(_processes(cluster))
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if not left:
            return
        gone(left)


def _processes(cluster: Slurm) -> Iterator[psutil.Process]:
    setting = cluster.environ()["SLURM_CONF"]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURM_CONF") == setting and process.status() != psutil.STATUS_ZOMBIE:
                yield process
