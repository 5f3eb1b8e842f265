"""Decide about a writer that the program never closed.

A writer shows nothing under its name until it is closed, so a forgotten one would lose its data. At the
normal end of the program, or when nothing refers to it any more, it is closed, with a warning. After an
exception it is given up, with a warning too: what it holds may be half of what was meant.

Python does not say how a program ends, so this looks at what is left of an exception: the one being handled,
`sys.last_value` (what ended the program, or a cell of a notebook), one that ended the thread, and the status
given to `sys.exit`.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import sys
import threading
import warnings
import weakref
from typing import Any, Protocol

from tarmac.display import display_url, redact
from tarmac.errors import UnclosedWriter

__all__ = ["Watch"]


class Writer(Protocol):
    """What publishes at `close` and leaves nothing behind at `abort`."""

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def _holds_data(self) -> bool: ...


class _Ending(threading.local):
    """What is known about the end of a thread; in the main thread, about that of the program."""

    failed = False
    """Whether an exception ended the thread."""
    exits = False
    """Whether `sys.exit` was called, with `status`."""
    status: object = None


_ending = _Ending()
_open: weakref.WeakValueDictionary[int, Watch] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_process: int | None = None  # the one whose end is watched
CALLERS = 4
"""Frames from the one that looks up to the caller of `__del__`, if there is one."""


class Watch:
    """Watch one writer from its opening until it is closed or given up."""

    def __init__(self, writer: Writer, target: str | None) -> None:
        _watch_the_end()
        _ending.exits = False  # a program that opens a writer has survived an earlier sys.exit
        self._writer = weakref.ref(writer)
        self._target = target
        self._process = os.getpid()
        self._exceptions = _exceptions()
        self._number = -1
        self.renew()

    @property
    def mine(self) -> bool:
        """Whether this process opened the writer, and not one that this was forked from."""
        return self._process == os.getpid()

    def renew(self) -> None:
        """Come before all other writers at the end: this one closes what it has opened."""
        self.done()
        self._number = next(_numbers)
        _open[self._number] = self

    def done(self) -> None:
        """Note that the writer was closed or given up."""
        _open.pop(self._number, None)

    def dropped(self, writer: Writer) -> None:
        """Close or give up a writer that nothing refers to any more. Only `__del__` calls this."""
        running = _has_caller()
        unwound = not running and not _ending.exits  # by a SystemExit whose status nobody knows
        self._settle(writer, "SystemExit ended the program" if unwound else self._reason(ending=not running))

    def ended(self) -> None:
        """Close or give up the writer at the end of the program."""
        writer = self._writer()
        if writer is not None:
            self._settle(writer, self._reason(ending=True))

    def abandoned(self) -> None:
        """Warn of a generator that has left its `with` block because it was not run to its end."""
        self._warn("Nothing was published, because the generator that holds it was not run to its end.")

    def _reason(self, *, ending: bool) -> str | None:
        """Say why the writer must not be published; None if it may."""
        if _exceptions() != self._exceptions or _ending.failed:
            return "an exception was raised while it was open"
        if ending and _ending.exits and _ending.status not in (None, 0):
            return "the program ended with an error status"
        rivals = (watch for watch in list(_open.values()) if watch is not self)
        if self._target is not None and any(rival._target == self._target for rival in rivals):
            return "another writer of the same name is open"
        return None

    def _settle(self, writer: Writer, reason: str | None) -> None:
        """Publish what an open writer holds, or give it up for a reason; say which."""
        self.done()
        if not self.mine:
            return
        if not writer._holds_data():
            writer.abort()
        elif reason is not None:
            writer.abort()
            self._warn(f"Nothing was published, because {reason}.")
        else:
            try:
                writer.close()
            except Exception as error:
                self._warn(f"It could not be published: {redact(str(error))}")
            else:
                self._warn("What was written to it is published now.")

    def _warn(self, fate: str) -> None:
        name = "a file object" if self._target is None else display_url(self._target)
        text = f"{name}: the writer was never closed. {fate} Try: a with block, or close()."
        warnings.warn(text, UnclosedWriter, stacklevel=CALLERS + 1)


def _exceptions() -> tuple[int, int]:
    """Identify the exception being handled, and the last one that nothing has handled."""
    current = sys.exc_info()[1]
    if isinstance(current, SystemExit) and current.code in (None, 0):
        current = None
    return id(current), id(getattr(sys, "last_value", None))


def _has_caller() -> bool:
    """Whether Python code runs above `__del__`; none does while SystemExit unwinds the whole program."""
    try:
        sys._getframe(CALLERS - 1)
    except ValueError:
        return False
    return True


def _watch_the_end() -> None:
    """Have this process look after its open writers when it ends."""
    global _process
    if _process == os.getpid():
        return
    if _process is None:
        atexit.register(_settle_all)
        sys.exit = _noting_status(sys.exit)
        threading.excepthook = _noting_failure(threading.excepthook)
    _process = os.getpid()
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize  # such a process ends without what atexit knows

        Finalize(None, _settle_all, exitpriority=0)


def _settle_all() -> None:
    for watch in list(_open.values())[::-1]:  # a writer before the file that it writes to
        watch.ended()


def _noting_status(original: Any) -> Any:
    @functools.wraps(original)
    def leave(status: object = None, /) -> None:
        _ending.exits, _ending.status = True, status
        original(status)

    return leave


def _noting_failure(original: Any) -> Any:
    @functools.wraps(original)
    def excepthook(*args: Any) -> None:
        _ending.failed = True
        original(*args)

    return excepthook
