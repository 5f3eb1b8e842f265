"""Interrupt work by signals, and let it save what it has first.

Schedulers send SIGTERM, SIGUSR1 or SIGUSR2 before they take a machine away. The handlers of the command line and of
worker processes call `interrupt`, which raises `Preempted`. Work that can continue later catches it, saves its state
and raises it again; all other work ends as with Ctrl-C. In a `hold` block, where an exception would lose what is
being saved, it is raised at the end.

A program that uses the library handles its own signals.
"""

from __future__ import annotations

import signal
import threading

PREEMPTION = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
"""Signals that announce the end: what can be saved is saved."""
INTERRUPTS = (signal.SIGINT, *PREEMPTION)
"""All signals that end the work."""


class Preempted(KeyboardInterrupt):
    """A signal announced the end of the process; `number` is that of the signal."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.number = number


class _State:
    """The state of the main thread, the only one that handles signals."""

    holding = False
    pending = 0
    """The signal to raise at the end of the block."""


def interrupt(number: int) -> None:
    """Raise what a signal means, or defer it to the end of a `hold` block; for signal handlers."""
    if number not in PREEMPTION:
        raise KeyboardInterrupt
    if not _State.holding:
        raise Preempted(number)
    _State.pending = _State.pending or number


def is_holding() -> bool:
    """Return whether the main thread is in a `hold` block, where only a second signal interrupts at once."""
    return _State.holding


class hold:  # noqa: N801 - used like a function
    """Defer `Preempted` to the end of the block, in the main thread. Ctrl-C is not deferred.

    The object can be used again.
    """

    def __init__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        self._outermost = False

    def __enter__(self) -> None:
        if self._main and not _State.holding:
            _State.holding = self._outermost = True

    def __exit__(self, *error: object) -> None:
        if self._outermost:
            _State.holding = self._outermost = False
            if _State.pending:
                number, _State.pending = _State.pending, 0
                raise Preempted(number)


def reinstall_handlers() -> None:
    """Install the signal handlers of Python again, over those of a C library; in the main thread."""
    if threading.current_thread() is threading.main_thread():
        for number in INTERRUPTS:
            signal.signal(number, signal.getsignal(number) or signal.SIG_DFL)
