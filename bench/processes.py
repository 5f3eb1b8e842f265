"""The memory of a process and of those that it starts, while they work."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERVAL = 0.25


class Peak:
    """The largest number of bytes so far; pages that several processes share count once."""

    bytes = 0

    def look(self) -> None:
        self.bytes = max(self.bytes, _held())


@contextmanager
def watching_memory() -> Iterator[Peak]:
    """Look at the memory of all processes, again and again, until the block ends."""
    peak, ends = Peak(), threading.Event()

    def watch() -> None:
        while not ends.wait(INTERVAL):
            peak.look()

    thread = threading.Thread(target=watch, daemon=True)
    peak.look()
    thread.start()
    try:
        yield peak
    finally:
        ends.set()
        thread.join()


def _held() -> int:
    import psutil

    own = psutil.Process(os.getpid())
    total = 0
    for process in (own, *own.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # it has ended
            continue
    return int(total)
