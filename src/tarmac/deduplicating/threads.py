"""Run functions in one thread per core, each of which multiplies matrices by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tarmac.extras import import_extra
from tarmac.runtime.cores import usable_cores


@contextlib.contextmanager
def one_core_each() -> Iterator[None]:
    """Multiply each matrix in the thread that asks for it.

    BLAS would divide each product among threads that wait for each other: products of our size take longer so, and
    fifty times as long where other processes need the cores.
    """
    with import_extra("threadpoolctl", "search", "dedup").threadpool_limits(1, "blas"):
        yield


@contextlib.contextmanager
def in_threads() -> Iterator[Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]]:
    """Yield a function like `map` whose calls run at the same time and whose results are in order."""
    with ThreadPoolExecutor(usable_cores(), "tarmac-dedup") as pool:
        try:
            yield pool.map
        finally:
            pool.shutdown(cancel_futures=True)
