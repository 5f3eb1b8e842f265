"""Waiting for other threads and processes, with timeouts.

A test never asserts how long something took: on a busy machine anything may take long. It waits for the event
itself. Nothing here is needed on a quiet machine for more than a tenth of these bounds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

import psutil

TIMEOUT = 120.0
"""Seconds after which an awaited event counts as lost."""
FOREVER = 10_000
"""Seconds longer than any test may take, for waits that must not happen."""


def until(condition: Callable[[], object], patience: float = TIMEOUT, pause: float = 0.01) -> bool:
    """Wait until a condition holds; return False after the timeout."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            return bool(condition())
        time.sleep(pause)
    return True


def gone(processes: Iterable[psutil.Process | int]) -> bool:
    """Wait until processes have exited, also as zombies; return False after the timeout."""
    left = list(processes)
    return until(lambda: not any(map(_runs, left)))


def _runs(process: psutil.Process | int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        target = psutil.Process(process) if isinstance(process, int) else process
        return target.is_running() and target.status() != psutil.STATUS_ZOMBIE
    return False


class FakeClock:
    """A replacement for the module `time`, to test how long code waits.

    Time passes while code sleeps, and by `tick` whenever it looks at the clock.
    """

    def __init__(self, tick: float = 0.0) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self._tick = tick

    def monotonic(self) -> float:
        self.now += self._tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
