"""Handle the signals that stop the program: clean up, and print no traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from tarmac.runtime.preemption import INTERRUPTS, interrupt, is_holding

_RETRY_DELAY = 0.01
"""Seconds before a signal that arrived where exceptions are lost is sent again."""


@contextlib.contextmanager
def interrupt_on_signals(received: list[int]) -> Iterator[None]:
    """Raise KeyboardInterrupt in this block at the first signal, and append each signal to `received`.

    Batch systems send SIGTERM, SIGUSR1 or SIGUSR2 before they kill: a job saves what it has. A second signal
    ends the saving; otherwise further signals are ignored, so that they do not disturb the cleanup.
    """
    process = os.getpid()

    def stop(number: int, _frame: Any) -> None:
        if os.getpid() != process:  # a child that has not replaced the handler yet
            os._exit(128 + number)
        received.append(number)
        if len(received) == 1:
            interrupt(number)
        elif is_holding():
            raise KeyboardInterrupt

    def retry(unraisable: Any) -> None:
        """Send the signal again: an exception raised while an object is freed is lost."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt) or not received:
            previous_hook(unraisable)
            return
        timer = threading.Timer(_RETRY_DELAY, os.kill, (process, received[0]))
        received.clear()
        timer.daemon = True
        timer.start()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous_hook = sys.unraisablehook
    previous = {number: signal.signal(number, stop) for number in INTERRUPTS}
    sys.unraisablehook = retry
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook
        for number, handler in previous.items():
            signal.signal(number, handler)
