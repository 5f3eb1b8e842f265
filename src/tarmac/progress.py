"""A progress bar on standard error, for people who wait."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["progress"]

T = TypeVar("T")
DELAY = 0.5
"""Seconds until the bar appears: short work needs none."""


def progress(items: Iterable[T], total: int, what: str, *, show: bool | None = None) -> Iterator[T]:
    """Yield the items and show how many there were; None shows it on terminals and in notebooks."""
    if not (sys.stderr.isatty() or _in_notebook() if show is None else show):
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
            if not bar.live.is_started and time.monotonic() - begun > DELAY:
                bar.start()
            yield item
    finally:
        if bar.live.is_started:
            bar.stop()


def _in_notebook() -> bool:
    """Return whether this is the kernel of a notebook, where rich draws bars although nothing is a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
