"""Say how far a download is, while it runs: rates, the share of successes, the most frequent errors."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tarmac.downloading.status import SUCCESS

EVERY = 1.0
"""Seconds between two messages."""
_ERRORS = 3


@dataclass
class Live:
    """Adds up what the units of this process have done, and calls a function about once a second."""

    say: Callable[[dict[str, Any]], None]
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
            self.say(self.numbers(now))

    def numbers(self, now: float) -> dict[str, Any]:
        """Return all numbers so far, as JSON."""
        total = self._before + self._last[0]
        rows, size, seconds = total.total(), self._bytes + self._last[1], max(now - self._started, 1e-9)
        others = [item for item in total.most_common() if item[0] != SUCCESS]
        return {
            "rows": rows,
            "rows_per_second": round(rows / seconds, 1),
            "success": round(total[SUCCESS] / rows, 4) if rows else 0.0,
            "bytes": size,
            "errors": dict(others[:_ERRORS]),
            "seconds": round(seconds, 1),
        }
