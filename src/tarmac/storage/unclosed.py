"""Handle writers that the program never closed.

A writer publishes nothing until it is closed, so a forgotten one would lose its data. It is closed with a
warning when the program exits normally, or when no reference to it is left. After an exception it is aborted
with a warning, because its data may be incomplete.

Python does not report how a program exits, so this module looks for traces of an exception: the one being
handled, `sys.last_value` (which ended the program or a notebook cell), one that ended the thread, and the
status passed to `sys.exit`.
"""

from __future__ import annotations

import atexit
import contextlib
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


class Writer(Protocol):
    """An object that publishes its data in `close` and discards it in `abort`."""

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def _holds_data(self) -> bool: ...


class _Ending(threading.local):
    """How a thread ends; for the main thread, how the program exits."""

    failed = False
    """Whether an exception ended the thread."""
    exits = False
    """Whether `sys.exit` was called, with `status`."""
    status: object = None


_ending = _Ending()
_open: weakref.WeakValueDictionary[int, Watch] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_process: int | None = None  # the process whose exit is watched
CALLERS = 4
"""The number of frames from `_has_caller` to the caller of `__del__`, if there is one."""


class Watch:
    """Watch a writer until it is closed or aborted."""

    def __init__(self, writer: Writer, target: str | None) -> None:
        _register_handlers()
        _ending.exits = False  # a program that opens a writer has survived an earlier sys.exit
        self._writer = weakref.ref(writer)
        self._target = target
        self._process = os.getpid()
        self._exceptions = _exceptions()
        self._number = -1
        self.renew()

    @property
    def mine(self) -> bool:
        """Whether this process opened the writer, and not a parent that it was forked from."""
        return self._process == os.getpid()

    def renew(self) -> None:
        """Move to the front of the order of closing: this writer closes the ones that it has opened."""
        self.done()
        self._number = next(_numbers)
        _open[self._number] = self

    def done(self) -> None:
        """Stop watching: the writer was closed or aborted."""
        _open.pop(self._number, None)

    def dropped(self, writer: Writer) -> None:
        """Close or abort a writer without references. Only `__del__` calls this."""
        running = _has_caller()
        unwound = not running and not _ending.exits  # by a SystemExit with an unknown status
        self._settle(writer, "SystemExit ended the program" if unwound else self._reason(ending=not running))

    def ended(self) -> None:
        """Close or abort the writer when the program exits."""
        writer = self._writer()
        if writer is not None:
            self._settle(writer, self._reason(ending=True))

    def abandoned(self) -> None:
        """Warn about a generator that left the `with` block of the writer before it was exhausted."""
        self._warn("Nothing was published, because the generator that uses it was not exhausted.")

    def _reason(self, *, ending: bool) -> str | None:
        """Return why the data must not be published, or None."""
        if _exceptions() != self._exceptions or _ending.failed:
            return "an exception was raised while it was open"
        if ending and _ending.exits and _ending.status not in (None, 0):
            return "the program exited with an error status"
        rivals = (watch for watch in list(_open.values()) if watch is not self)
        if self._target is not None and any(rival._target == self._target for rival in rivals):
            return "another writer for the same name is open"
        return None

    def _settle(self, writer: Writer, reason: str | None) -> None:
        """Close a writer, or abort it for a reason, with a warning."""
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
                self._warn(f"Its data could not be published: {redact(str(error))}")
            else:
                self._warn("Its data was published.")

    def _warn(self, fate: str) -> None:
        name = "a file object" if self._target is None else display_url(self._target)
        text = f"{name}: the writer was never closed. {fate} Try: a with block, or close()."
        warnings.warn(text, UnclosedWriter, stacklevel=CALLERS + 1)


def _exceptions() -> tuple[int, int]:
    """Return the identities of the exception being handled and of the last unhandled one."""
    current = sys.exc_info()[1]
    if isinstance(current, SystemExit) and current.code in (None, 0):
        current = None
    return id(current), id(getattr(sys, "last_value", None))


def _has_caller() -> bool:
    """Return whether Python code called `__del__`; none does while SystemExit unwinds the whole program."""
    try:
        sys._getframe(CALLERS - 1)
    except ValueError:
        return False
    return True


def _register_handlers() -> None:
    """Register the handlers that settle open writers when this process exits."""
    global _process
    if _process == os.getpid():
        return
    if _process is None:
        atexit.register(_settle_all)
        sys.exit = _record_status(sys.exit)
        threading.excepthook = _record_failure(threading.excepthook)
    _process = os.getpid()
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize  # these processes exit without running atexit handlers

        Finalize(None, _settle_all, exitpriority=0)


def _settle_all() -> None:
    with contextlib.ExitStack() as stack:  # calls all of them, even where warnings are errors
        for watch in list(_open.values()):  # last in, first out: writers before the files that they write to
            stack.callback(watch.ended)


def _record_status(original: Any) -> Any:
    @functools.wraps(original)
    def exit_with(status: object = None, /) -> None:
        _ending.exits, _ending.status = True, status
        original(status)

    return exit_with


def _record_failure(original: Any) -> Any:
    @functools.wraps(original)
    def excepthook(*args: Any) -> None:
        _ending.failed = True
        original(*args)

    return excepthook
