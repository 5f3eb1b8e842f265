"""The library that indexes vectors, faiss: import it, set its threads, and give it arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tarmac.errors import UsageError
from tarmac.extras import import_extra

Metric: TypeAlias = Literal["ip", "l2"]
Numbers: TypeAlias = NDArray[np.int64]
Scores: TypeAlias = NDArray[np.float32]
Vectors: TypeAlias = NDArray[np.float32]
METRICS = ("ip", "l2")


def import_faiss() -> Any:
    """Return the module; raise MissingExtra if it is not installed."""
    return import_extra("faiss", "search", "indexes of vectors")


def metric_number(metric: Metric) -> int:
    """Return what the library calls a metric."""
    faiss = import_faiss()
    return int(faiss.METRIC_INNER_PRODUCT if metric == "ip" else faiss.METRIC_L2)


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Have the library use this number of threads, at most as many as it would; 0 leaves it as it is."""
    faiss = import_faiss()
    before = faiss.omp_get_max_threads()
    if number:
        faiss.omp_set_num_threads(min(number, before))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def contiguous(array: Any, kind: Any = np.float32) -> Any:
    """Return an array as the library reads it: one row after the other, of this type."""
    return np.ascontiguousarray(array, kind)


def check_finite(vectors: Vectors, url: str | None = None) -> None:
    """Raise UsageError if vectors have numbers that cannot be compared."""
    if not np.isfinite(vectors).all():
        raise UsageError("a vector has numbers that are infinite or not numbers.", url=url)


def sign(metric: Metric) -> int:
    """Return what makes scores of a metric larger the better they are."""
    return 1 if metric == "ip" else -1


def exact_scores(queries: Vectors, rows: Vectors, metric: Metric) -> Scores:
    """Return the score of each row with the query of the same number, (q, d) with (q, r, d), or with the only query."""
    if metric == "ip":
        scores: Scores = np.einsum("qd,qrd->qr", queries, rows, optimize=True)
        return scores
    away = rows - queries[:, None, :]
    distances: Scores = np.einsum("qrd,qrd->qr", away, away, optimize=True)
    return distances


def nearest(
    queries: Vectors, blocks: Iterator[tuple[Numbers, Vectors]], count: int, metric: Metric
) -> tuple[Scores, Numbers]:
    """Return the best scores of each query over all blocks of (numbers, vectors), and the numbers; exactly.

    Where there are fewer vectors than `count`, numbers are -1.
    """
    faiss = import_faiss()
    worst = np.float32(-np.inf if metric == "ip" else np.inf)
    scores = np.full((len(queries), count), worst, np.float32)
    numbers = np.full((len(queries), count), -1, np.int64)
    for ids, vectors in blocks:
        if not len(ids):
            continue
        results, at = faiss.knn(
            queries, contiguous(vectors), min(count, len(ids)), metric=metric_number(metric)
        )
        all_scores = np.concatenate([scores, results], axis=1)
        all_numbers = np.concatenate([numbers, np.where(at >= 0, ids[at], -1)], axis=1)
        best = np.argsort(-sign(metric) * all_scores, axis=1, kind="stable")[:, :count]
        scores = np.take_along_axis(all_scores, best, axis=1)
        numbers = np.take_along_axis(all_numbers, best, axis=1)
    return scores, numbers
