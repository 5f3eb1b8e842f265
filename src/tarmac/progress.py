"""A progress bar on standard error, shown when somebody is looking."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["progress"]

T = TypeVar("T")
PATIENCE = 0.5
"""Seconds for which nothing is shown: what is over by then needs no bar."""


def progress(items: Iterable[T], total: int, what: str, *, show: bool | None = None) -> Iterator[T]:
    """Pass on the items and show how many there have been; None shows it on a terminal only."""
    if show is None:
        show = sys.stderr.isatty()
    if not show:
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    begun, task = time.monotonic(), bar.add_task(what, total=total)
    try:
        for item in items:
            bar.advance(task)
            if not bar.live.is_started and time.monotonic() - begun > PATIENCE:
                bar.start()
            yield item
    finally:
        if bar.live.is_started:
            bar.stop()
