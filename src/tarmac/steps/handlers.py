"""What to do when a stage fails on a sample: raise, or drop it and go on or stop, and keep count.

A handler is a function from an exception to True (drop the sample and go on) or False (drop it and end
the stream quietly); it may also raise. Whatever a handler drops is counted by the stage, and the pipeline
reports it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from tarmac.errors import redact

__all__ = [
    "Drops",
    "Handler",
    "ignore_and_continue",
    "ignore_and_stop",
    "reraise_exception",
    "warn_and_continue",
    "warn_and_stop",
]

Handler = Callable[[Exception], bool]
EXAMPLES = 10


def reraise_exception(exn: Exception) -> bool:
    """Raise the error."""
    raise exn


def ignore_and_continue(exn: Exception) -> bool:
    """Drop the sample and go on."""
    return True


def warn_and_continue(exn: Exception) -> bool:
    """Drop the sample with a warning and go on."""
    warnings.warn(redact(repr(exn)), stacklevel=2)
    return True


def ignore_and_stop(exn: Exception) -> bool:
    """Drop the sample and end the stream."""
    return False


def warn_and_stop(exn: Exception) -> bool:
    """Drop the sample with a warning and end the stream."""
    warnings.warn(redact(repr(exn)), stacklevel=2)
    return False


@dataclass(slots=True)
class Drops:
    """How many samples a stage has dropped, and the errors of the first few."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def ask(self, handler: Handler, exn: Exception) -> bool:
        """Let the handler decide, and count what it drops; True to go on, False to stop."""
        go_on = handler(exn)
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(redact(str(exn) or repr(exn)))
        return go_on
