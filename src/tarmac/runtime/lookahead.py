"""Start work on a bounded number of items before their results are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")
PER_WORKER = 2
"""Items in flight for each worker: one being processed, and one queued so that the worker never idles."""
WAKE_UP = 0.2
"""Seconds between two checks for signals while waiting."""


def look_ahead(start: Callable[[T], R], items: Iterable[T], depth: int) -> Iterator[R]:
    """Yield `start(item)` for each item, in order, starting up to `depth` items before the first is taken.

    If `items` raises, the results of the items before are yielded first. An error of `start` is raised at
    once.
    """
    started: deque[R] = deque()
    failure: Exception | None = None

    def source() -> Iterator[T]:
        nonlocal failure
        try:
            for item in items:  # noqa: UP028 - `yield from` would close the caller's iterator
                yield item
        except Exception as error:
            failure = error

    for item in source():
        started.append(start(item))
        if len(started) >= depth:
            yield started.popleft()
    while started:
        yield started.popleft()
    if failure is not None:
        raise failure


def in_threads(f: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield `f(item)` for each item, in order, computed by `threads` threads.

    Only the caller's thread reads `items`.
    """
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(threads, thread_name_prefix="tarmac")
    try:
        for future in look_ahead(lambda item: pool.submit(f, item), items, threads * PER_WORKER):
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def run_ahead(
    submit: Callable[[T], Future[R]], items: Iterable[T], workers: int, *, ordered: bool = True
) -> Iterator[tuple[T, Future[R]]]:
    """Submit items and yield each with its completed future, in order or as they complete."""
    depth = workers * PER_WORKER
    if ordered:
        for item, future in look_ahead(lambda item: (item, submit(item)), items, depth):
            first_completed([future])
            yield item, future
        return
    running: dict[Future[R], T] = {}
    for item in items:
        running[submit(item)] = item
        if len(running) >= depth:
            future = first_completed(running)
            yield running.pop(future), future
    while running:
        future = first_completed(running)
        yield running.pop(future), future


def first_completed(futures: Iterable[Future[R]]) -> Future[R]:
    """Wait for one of the futures and return it."""
    from concurrent.futures import FIRST_COMPLETED, wait

    futures = list(futures)
    # Wake up now and then: a signal that another thread received does not interrupt this wait.
    while not wait(futures, WAKE_UP, FIRST_COMPLETED).done:
        pass
    return next(future for future in futures if future.done())
