"""Interrupt work that takes too long."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from collections.abc import Iterator
from typing import Any


class TimeLimitExceeded(BaseException):
    """Interrupts the work inside of `time_limit`; code that handles errors does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeLimitExceeded in this block after `seconds`.

    In the main thread a signal also interrupts system calls; in others the exception waits for them.
    """
    if seconds is None:
        yield
    elif threading.current_thread() is threading.main_thread():
        with _by_signal(seconds):
            yield
    else:
        with _by_timer(seconds):
            yield


@contextlib.contextmanager
def _by_signal(seconds: float) -> Iterator[None]:
    def expire(_number: int, _frame: Any) -> None:
        raise TimeLimitExceeded

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, as an exception in a finalizer is lost
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def _by_timer(seconds: float) -> Iterator[None]:
    lock, thread, active = threading.Lock(), threading.get_ident(), True

    def expire() -> None:
        with lock:
            if active:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(TimeLimitExceeded)
                )

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            active = False
        timer.cancel()
