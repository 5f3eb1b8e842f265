"""Signals that end the program: what is half done is cleared up, and no traceback is printed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["ending"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MOMENT = 0.01
"""Seconds after which a signal is sent again that came where nothing can be raised."""


@contextlib.contextmanager
def ending(came: list[int]) -> Iterator[None]:
    """Have the first signal raise KeyboardInterrupt in this block, to clear up; put down which `came`.

    Batch systems send SIGTERM before they kill, which means the same as Ctrl-C. Further signals are
    ignored: they must not disturb the clearing up.
    """
    process = os.getpid()

    def stop(number: int, _frame: Any) -> None:
        if os.getpid() != process:  # a child that has not come to its own work yet
            os._exit(128 + number)
        came.append(number)
        if len(came) == 1:
            raise KeyboardInterrupt

    def lost(found: Any) -> None:
        """Try again: what is raised while an object is freed goes no further."""
        if not issubclass(found.exc_type, KeyboardInterrupt) or not came:
            others(found)
            return
        again = threading.Timer(_MOMENT, os.kill, (process, came[0]))
        came.clear()
        again.daemon = True
        again.start()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    others = sys.unraisablehook
    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    sys.unraisablehook = lost
    try:
        yield
    finally:
        sys.unraisablehook = others
        for number, handler in before.items():
            signal.signal(number, handler)
