"""Search an index: candidates from its codes, then exact scores from the vectors themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tarmac.searching.choice import Choice
from tarmac.searching.library import (
    Metric,
    Numbers,
    Scores,
    Vectors,
    exact_scores,
    import_faiss,
    nearest,
    sign,
    threads,
)
from tarmac.searching.sources import Sources

RERANKED_BYTES = 32 << 20
"""Bytes of vectors that are compared exactly at a time."""
SCANNED = 20_000
"""Number of selected vectors up to which all of them are compared."""
FEW = 8
"""Queries below which a second thread costs more than it gains: on a busy machine, much more."""
TUNED_FOR = 10
"""The number of neighbours for which the parameters are measured."""


@dataclass(frozen=True)
class Effort:
    """How much of an index a search looks at."""

    probes: int = 0
    """Lists that are compared, or the width of the search in a graph."""
    candidates: int = 0
    """Vectors that are compared exactly, if scores are estimates."""


class Found(NamedTuple):
    """The nearest vectors of each query, the best first. Where there are fewer than asked for, numbers are -1."""

    scores: Scores
    numbers: Numbers


class Searcher:
    """An index in memory, and the vectors on disk that it was made from."""

    def __init__(self, index: Any, choice: Choice, metric: Metric, vectors: Sources) -> None:
        self.index, self.choice, self.metric, self.vectors = index, choice, metric, vectors

    def search(
        self,
        queries: Vectors,
        k: int,
        effort: Effort,
        mask: NDArray[np.bool_] | None = None,
    ) -> Found:
        """Return the `k` nearest vectors of each query, among those of the mask if there is one."""
        times = -(-k // TUNED_FOR)
        wider = Effort(effort.probes * times, effort.candidates * times)
        if mask is None:
            return self._full(queries, k, wider, None, lambda: np.arange(len(self.vectors)))
        allowed = np.flatnonzero(mask)
        if len(allowed) <= SCANNED:
            return self.scan(queries, k, allowed)
        wider = replace(wider, probes=round(wider.probes * len(mask) / len(allowed)))
        return self._full(queries, k, wider, np.packbits(mask, bitorder="little"), lambda: allowed)

    def _full(
        self, queries: Vectors, k: int, effort: Effort, bitmap: Any, allowed: Callable[[], Numbers]
    ) -> Found:
        """Search again, in more and more lists, for queries in whose lists there were too few vectors."""
        results = self.exactly(queries, k, effort, bitmap)
        while len(short := np.flatnonzero((results.numbers < 0).any(axis=1))) and k <= len(self.vectors):
            effort = replace(effort, probes=4 * max(effort.probes, 1))
            if self.choice.lists:
                again = self.exactly(queries[short], k, effort, bitmap)
            else:
                again = self.scan(queries[short], k, allowed())
            results.scores[short], results.numbers[short] = again
            if effort.probes >= self.choice.lists:
                break
        return results

    def scan(self, queries: Vectors, k: int, numbers: Numbers) -> Found:
        """Compare the queries with all vectors of these numbers."""
        return Found(*nearest(queries, self.vectors.selected(numbers), k, self.metric))

    def exactly(self, queries: Vectors, k: int, effort: Effort, bitmap: Any = None) -> Found:
        """Search with this effort alone, whatever `k` is."""
        if not self.choice.reranks:
            scores, numbers = self.candidates(queries, k, effort, bitmap)
            return Found(scores, numbers)
        count = min(max(effort.candidates, k), len(self.vectors))
        result = Found(np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64))
        step = max(RERANKED_BYTES // (4 * count * self.choice.dimension), 1)
        for start in range(0, len(queries), step):
            block = slice(start, start + step)
            _, numbers = self.candidates(queries[block], count, effort, bitmap)
            result.scores[block], result.numbers[block] = self.rerank(queries[block], numbers, k)
        return result

    def candidates(self, queries: Vectors, count: int, effort: Effort, bitmap: Any = None) -> Found:
        """Return the best vectors by the scores of the index, the best first."""
        asked = min(count, len(self.vectors))
        with threads(1 if len(queries) < FEW else 0):
            scores, numbers = self.index.search(
                queries, asked, params=self._parameters(effort, count, bitmap)
            )
        return _filled(Found(scores, numbers), count, self.metric)

    def rerank(self, queries: Vectors, numbers: Numbers, k: int) -> Found:
        """Return the best `k` of these vectors for each query, by their exact scores."""
        present = numbers >= 0
        rows = self.vectors.take(np.where(present, numbers, 0)).reshape(*numbers.shape, -1)
        scores = exact_scores(queries, rows, self.metric)
        scores[~present] = _worst(self.metric)
        best = np.argsort(-sign(self.metric) * scores, axis=1, kind="stable")[:, :k]
        results = Found(np.take_along_axis(scores, best, 1), np.take_along_axis(numbers, best, 1))
        return _filled(results, k, self.metric)

    def scores_of(self, query: Vectors, numbers: Numbers) -> Scores:
        """Return the exact scores of some vectors with one query; those of -1 are the worst."""
        present = numbers >= 0
        rows = self.vectors.take(np.where(present, numbers, 0))
        scores = exact_scores(query[None], rows[None], self.metric)[0]
        return np.where(present, scores, np.float32(_worst(self.metric)))

    def _parameters(self, effort: Effort, count: int, bitmap: Any) -> Any:
        faiss = import_faiss()
        selected = {} if bitmap is None else {"sel": faiss.IDSelectorBitmap(bitmap)}
        if self.choice.kind == "flat":
            return faiss.SearchParameters(**selected)
        if self.choice.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=max(effort.probes, count), **selected)
        probes = min(max(effort.probes, 1), self.choice.lists)
        inner = faiss.SearchParametersIVF(nprobe=probes, **selected)
        if self.choice.kind == "ivf":
            return inner
        return faiss.SearchParametersPreTransform(index_params=inner)


def _worst(metric: Metric) -> float:
    return -np.inf if metric == "ip" else np.inf


def _filled(results: Found, k: int, metric: Metric) -> Found:
    """Return lists of this length; what is missing has the number -1 and the worst score."""
    missing = k - results.numbers.shape[1]
    if missing > 0:
        rows = len(results.numbers)
        scores = np.concatenate([results.scores, np.full((rows, missing), 0, np.float32)], axis=1)
        results = Found(
            scores, np.concatenate([results.numbers, np.full((rows, missing), -1, np.int64)], axis=1)
        )
    return Found(np.where(results.numbers < 0, np.float32(_worst(metric)), results.scores), results.numbers)
