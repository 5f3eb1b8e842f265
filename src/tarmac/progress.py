"""A progress bar on standard error, shown on a terminal or in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
DELAY = 0.5
"""Seconds before the bar appears, so that short operations show none."""


def track(items: Iterable[T], total: int, what: str, *, progress: bool | None = None) -> Iterator[T]:
    """Yield the items and show a progress bar; None shows it on terminals and in notebooks."""
    notebook = _in_notebook()
    if not (sys.stderr.isatty() or notebook if progress is None else progress):
        yield from items
    elif notebook:
        yield from _count(items, total, what)
    else:
        yield from _draw_bar(items, total, what)


def _count(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Show a count in one line of text: in notebooks, rich draws bars only if ipywidgets is installed."""
    shown, line = time.monotonic(), ""
    try:
        for number, item in enumerate(items, 1):
            if time.monotonic() - shown > DELAY:
                shown, line = time.monotonic(), f"{what} {number}/{total}"
                _write(f"\r{line}")
            yield item
    finally:
        if line:
            _write(f"\r{' ' * len(line)}\r")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _draw_bar(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    start, task = time.monotonic(), bar.add_task(what, total=total)
    try:
        for item in items:
            bar.advance(task)
            if not bar.live.is_started and time.monotonic() - start > DELAY:
                bar.start()
            yield item
    finally:
        if bar.live.is_started:
            bar.stop()


def _in_notebook() -> bool:
    """Return whether this is the kernel of a notebook, which shows what is written although it is not a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
