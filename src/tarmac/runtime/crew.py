"""How many workers run the units of a job at a time, for units that take an equal part of a limit of the whole job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_workers: ContextVar[int | None] = ContextVar("workers", default=None)


def workers_at_once(default: int) -> int:
    """Return how many workers the engine has; `default` if it does not say, because the job knows it already."""
    return _workers.get() or default


@contextlib.contextmanager
def one_of(workers: int | None) -> Iterator[None]:
    """Run a unit as one of several workers."""
    token = _workers.set(workers)
    try:
        yield
    finally:
        _workers.reset(token)
