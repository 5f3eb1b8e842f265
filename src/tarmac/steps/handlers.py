"""Decide what happens when a stage fails on a sample: raise, or drop it and continue or stop.

A handler is a function from an exception to True (drop the sample and continue) or False (drop it and end the
stream). It may also raise. The stage counts dropped samples, and the pipeline reports them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from tarmac.display import redact

Handler = Callable[[Exception], bool]
MAX_EXAMPLES = 10


def reraise_exception(exn: Exception) -> bool:
    """Raise the error."""
    raise exn


def ignore_and_continue(exn: Exception) -> bool:
    """Drop the sample and continue."""
    return True


def warn_and_continue(exn: Exception) -> bool:
    """Drop the sample with a warning and continue."""
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
    """Counts the samples that a stage dropped and keeps the first error messages."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def ask(self, handler: Handler, exn: Exception) -> bool:
        """Call the handler and count the dropped sample; return whether to continue."""
        go_on = handler(exn)
        self.count += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(redact(str(exn) or repr(exn)))
        return go_on
