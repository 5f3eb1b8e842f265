"""Measure what the time of a unit is spent on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
READING, PREPARING, COMPUTING = "reading", "preparing", "computing"


class Clock:
    """Adds seconds to a dictionary, by activity."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    @contextlib.contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Add the time of a block."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add(activity, time.monotonic() - started)

    def over(self, activity: str, items: Iterable[T]) -> Iterator[T]:
        """Yield items, and add the time that it takes to get them."""
        iterator = iter(items)
        while True:
            started = time.monotonic()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.add(activity, time.monotonic() - started)
            yield item

    def add(self, activity: str, seconds: float) -> None:
        self.seconds[activity] = self.seconds.get(activity, 0.0) + seconds
