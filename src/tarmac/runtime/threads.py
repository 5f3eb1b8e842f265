"""Work on several items at a time, in order, with a bounded look-ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_threads"]

T = TypeVar("T")
R = TypeVar("R")
AHEAD = 2
"""Items in work or waiting to be taken, for each thread."""


def in_threads(f: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield `f(item)` for each item, in order, computed by so many threads.

    The source is read by the caller's thread only. A source that fails does so after the results of the
    items before it were handed out.
    """
    pending: deque[Future[R]] = deque()
    source, failure = iter(items), None
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tarmac")
    try:
        while True:
            try:
                while len(pending) < threads * AHEAD:
                    pending.append(pool.submit(f, next(source)))
            except StopIteration:
                pass
            except Exception as error:
                failure, source = error, iter(())
            if not pending:
                break
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if failure is not None:
        raise failure
