"""Say how far a download is, while it runs: rates, the share of successes, the most frequent errors."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tarmac.downloading.network.board import Board
from tarmac.downloading.status import SUCCESS

EVERY = 1.0
"""Seconds between two messages."""
_ERRORS = 3
_BYTES = "bytes"
Say = Callable[[dict[str, Any]], None]


@dataclass
class Live:
    """Adds up what the units of this process have done, and calls a function about once a second."""

    say: Say
    clock: Callable[[], float] = time.monotonic
    _before: Counter[str] = field(default_factory=Counter)
    _last: tuple[Counter[str], int] = field(default_factory=lambda: (Counter(), 0))
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._started = self._said = self.clock()

    def __call__(self, statuses: Counter[str], size: int) -> None:
        """Take note of what a unit has done so far."""
        if statuses is not self._last[0]:  # the next unit
            self._before.update(self._last[0])
            self._bytes += self._last[1]
        self._last = statuses, size
        now = self.clock()
        if now - self._said >= EVERY:
            self._said = now
            self.say(_numbers(self._before + self._last[0], self._bytes + self._last[1], now - self._started))


@dataclass
class Posting:
    """Tells the process that started this one, about once a second, what a unit has done."""

    board: Board
    _posted: Counter[str] = field(default_factory=Counter)
    _posted_at: float = 0.0

    def __call__(self, statuses: Counter[str], size: int) -> None:
        """Take note of what the unit has done so far."""
        if time.monotonic() - self._posted_at >= EVERY:
            self.post(statuses, size)

    def post(self, statuses: Counter[str], size: int) -> None:
        """Tell what is new."""
        total = statuses + Counter({_BYTES: size})
        self.board.add(total - self._posted)
        self._posted, self._posted_at = total, time.monotonic()


@contextmanager
def watching(path: str, say: Say) -> Iterator[None]:
    """Call a function about once a second, and at the end, with what all processes have posted on a board."""
    ended, began = threading.Event(), time.monotonic()

    def watch() -> None:
        with Board(path) as board:
            last = False
            while not last:
                last = ended.wait(EVERY)
                total = board.counts()
                size = total.pop(_BYTES, 0)
                say(_numbers(total, size, time.monotonic() - began))

    with ThreadPoolExecutor(1, "live") as thread:
        watcher = thread.submit(watch)
        try:
            yield
        finally:
            ended.set()
        watcher.result()


def _numbers(total: Counter[str], size: int, seconds: float) -> dict[str, Any]:
    """Return all numbers so far, as JSON."""
    rows, seconds = total.total(), max(seconds, 1e-9)
    others = [item for item in total.most_common() if item[0] != SUCCESS]
    return {
        "rows": rows,
        "rows_per_second": round(rows / seconds, 1),
        "success": round(total[SUCCESS] / rows, 4) if rows else 0.0,
        "bytes": size,
        "errors": dict(others[:_ERRORS]),
        "seconds": round(seconds, 1),
    }
