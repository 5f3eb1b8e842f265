"""Kill a child process with SIGKILL at a random time, and check the files that remain."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

READY = b"ready\n"


@dataclass(frozen=True)
class Crash:
    """The result of a round: the time of the kill, or the status if the child exited before."""

    seed: int
    seconds: float
    status: int

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL


def crash(script: str, args: Sequence[str], seed: int, longest: float) -> Crash:
    """Run a script that prints "ready" when it starts, and kill it within `longest` seconds."""
    seconds = random.Random(seed).uniform(0, longest)
    command = [sys.executable, "-c", script, *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        if line != READY:
            raise RuntimeError(f"the child printed {line!r} and ended with {child.wait()}")
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.stdout.close()
        return Crash(seed, seconds, child.wait())


class Forked:
    """Children forked from this process, which start a hundred times faster than an interpreter."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def usual(self) -> float:
        """Run the work in this process and return its duration, the range for the time of a kill."""
        started = time.monotonic()
        self._work()
        return time.monotonic() - started

    def start(self) -> int:
        """Fork, run the work in the child, which has a process group of its own, and return its number."""
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                os.setpgid(0, 0)
                self._work()
                status = 0
            os._exit(status)
        return pid

    def crash(self, seed: int, longest: float) -> Crash:
        """Run the work in a child, and kill it within `longest` seconds."""
        seconds = random.Random(seed).uniform(0, longest)
        pid = self.start()
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return Crash(seed, seconds, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def survive(kills: int, strike: Callable[[int], Crash], check: Callable[[], object], first: int = 0) -> int:
    """Repeat until `kills` children were killed, and check after each; return the number of rounds."""
    killed = 0
    for seed in range(first, first + 20 * kills):
        result = strike(seed)
        killed += result.killed
        try:
            check()
        except BaseException as error:
            error.add_note(f"seed {seed}: killed after {result.seconds * 1e6:.0f} us, status {result.status}")
            raise
        if killed == kills:
            return seed - first + 1
    raise AssertionError(f"only {killed} of {20 * kills} children were killed: they end too soon")
