"""Measure the recall of an index against all vectors, and choose the least effort that reaches a target."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tarmac.searching.library import Metric, Numbers, Scores, Vectors, nearest, sign
from tarmac.searching.searcher import TUNED_FOR, Effort, Found, Searcher
from tarmac.searching.sources import Sources
from tarmac.searching.train import sample_numbers

QUERIES = 1000
TIES = 4
"""How many times more neighbours are known than needed, since some have the same score."""
RESAMPLES = 1000
MOST_CANDIDATES = 2048
TIMED = 200
_SEED = 2
_SAME = 1e-5
"""Difference of two scores, as a share, below which they count as equal."""


@dataclass(frozen=True)
class Recall:
    """The share of the nearest neighbours that searches return, and its 95 % interval."""

    mean: float
    low: float
    high: float
    queries: int
    at: int = TUNED_FOR

    def __str__(self) -> str:
        return (
            f"recall@{self.at} {self.mean:.4f} ({self.low:.4f} to {self.high:.4f} on {self.queries} queries)"
        )


@dataclass(frozen=True)
class Latency:
    """How long a search for one query takes, in milliseconds."""

    p50: float
    p95: float


@dataclass(frozen=True)
class Truth:
    """Vectors of the index as queries, and the nearest others of each, from comparing all."""

    numbers: Numbers
    queries: Vectors
    nearest: Numbers
    scores: Scores
    at: int
    metric: Metric

    @classmethod
    def of(
        cls,
        vectors: Sources,
        metric: Metric,
        numbers: Numbers,
        *,
        apart: bool = False,
        stop: int | None = None,
    ) -> Truth:
        """Compare some vectors with all, or up to a number; if `apart`, only with those that are not queries."""
        total = (len(vectors) if stop is None else stop) - (len(numbers) if apart and stop is None else 0)
        at = max(min(TUNED_FOR, total - 1), 1)
        asked = vectors.take(numbers)
        blocks = vectors.numbered(0, stop, numbers if apart else None)
        scores, others = nearest(asked, blocks, min(at * TIES, max(total - 1, 1)) + 1, metric)
        scores, others = without(Found(scores, others), numbers)
        return cls(numbers, asked, others, scores, at, metric)

    @property
    def thresholds(self) -> NDArray[np.float32]:
        """The score of each query from which a vector is among its nearest; several may have it."""
        last = self.scores[:, self.at - 1]
        least = last - sign(self.metric) * _SAME * np.maximum(np.abs(last), _SAME)
        return least.astype(np.float32)

    def correct(self, results: Numbers, searcher: Searcher) -> NDArray[np.bool_]:
        """Return for each vector in results whether it is among the nearest of its query."""
        better, thresholds = sign(self.metric), self.thresholds
        good = self.scores * better >= thresholds[:, None] * better
        known = np.where(good, self.nearest, -2)
        result = np.empty(results.shape, bool)
        for row in range(len(results)):
            result[row] = np.isin(results[row], known[row])
        more = good.all(axis=1) & (self.nearest.shape[1] > self.at)  # others may have the same score
        for row in np.flatnonzero(more).tolist():
            scores = searcher.scores_of(self.queries[row], results[row])
            result[row] = (results[row] >= 0) & (scores * better >= thresholds[row] * better)
        return result

    def recalls(self, correct: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the recall of each query, from what was correct of its results."""
        recalls: NDArray[np.float64] = np.minimum(correct.sum(axis=1), self.at) / self.at
        return recalls

    def part(self, rows: slice) -> Truth:
        """Return some of the queries."""
        return Truth(
            self.numbers[rows],
            self.queries[rows],
            self.nearest[rows],
            self.scores[rows],
            self.at,
            self.metric,
        )


def choose_queries(total: int, first: int = 0, *, count: int = QUERIES, share: int = 3) -> Numbers:
    """Choose vectors as queries, among those from `first` on, one of `share` at most; always the same ones."""
    available = total - first
    return sample_numbers(available, min(count, max(available // share, 1)), _SEED) + first


def without(results: Found, numbers: Numbers) -> Found:
    """Return lists without the query itself, one shorter."""
    own = results.numbers == numbers[:, None]
    own[~own.any(axis=1), -1] = True
    keep = ~own
    shape = len(results.numbers), results.numbers.shape[1] - 1
    return Found(results.scores[keep].reshape(shape), results.numbers[keep].reshape(shape))


def interval(recalls: NDArray[np.float64], at: int = TUNED_FOR) -> Recall:
    """Return the mean of recalls with its interval, by drawing queries again and again (bootstrap)."""
    rng = np.random.default_rng(3)
    counts = rng.multinomial(len(recalls), np.full(len(recalls), 1 / len(recalls)), RESAMPLES)
    means = counts @ recalls / len(recalls)
    low, high = np.quantile(means, [0.025, 0.975])
    return Recall(float(recalls.mean()), float(low), float(high), len(recalls), at)


def measure(searcher: Searcher, truth: Truth, effort: Effort) -> Recall:
    """Return the recall of searches with this effort."""
    results = searcher.exactly(truth.queries, truth.at + 1, effort)
    others = without(results, truth.numbers)
    return interval(truth.recalls(truth.correct(others.numbers, searcher)), truth.at)


def latency(searcher: Searcher, truth: Truth, effort: Effort, count: int = TIMED) -> Latency:
    """Time searches for one query each, after a few that warm up."""
    seconds = []
    for number in range(-10, min(count, len(truth.queries))):
        query = truth.queries[number : number + 1] if number >= 0 else truth.queries[:1]
        begin = time.perf_counter()
        searcher.search(query, TUNED_FOR, effort)
        if number >= 0:
            seconds.append(time.perf_counter() - begin)
    p50, p95 = np.quantile(seconds, [0.5, 0.95]) * 1e3
    return Latency(round(float(p50), 3), round(float(p95), 3))


def find_effort(searcher: Searcher, truth: Truth, target: float) -> tuple[Effort | None, Recall]:
    """Return the fastest effort whose recall reaches the target with its lower bound, and that recall.

    If there is none, since codes are too coarse or a graph has too few links, the recall is the best one.
    """
    best: tuple[Effort | None, Recall] | None = None
    for probes, between in _probes(searcher):
        effort, recall = _least_candidates(searcher, truth, probes, target)
        best = (effort, recall)
        if effort is None:
            continue
        others = (_least_candidates(searcher, truth, other, target) for other in between)
        reached = [(effort, recall), *((other, seen) for other, seen in others if other is not None)]
        if len(reached) == 1:
            return best
        return min(reached, key=lambda each: latency(searcher, truth, each[0], 50).p50)
    assert best is not None
    return best


def _probes(searcher: Searcher) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield how many lists to compare, more and more, with numbers that are tried too once one is enough."""
    kind, most = searcher.choice.kind, searcher.choice.lists
    if kind == "flat":
        yield 0, ()
    elif kind == "hnsw":
        yield from ((1 << power, ()) for power in range(4, 12))
    else:
        for power in range(most.bit_length()):
            probes = 1 << power
            others = {round(probes * 0.7), min(round(probes * 1.4), most)} - {probes, 0}
            yield probes, sorted(others) if searcher.choice.reranks else sorted(others)[:1]


def _least_candidates(
    searcher: Searcher, truth: Truth, probes: int, target: float
) -> tuple[Effort | None, Recall]:
    """Return the fewest candidates with which these probes reach the target, and the recall of the most."""
    if not searcher.choice.reranks:
        effort = Effort(probes)
        recall = measure(searcher, truth, effort)
        return (effort if recall.low >= target else None), recall
    most = min(MOST_CANDIDATES, max(len(searcher.vectors) // 2, 10 * TUNED_FOR), len(searcher.vectors) - 1)
    results = searcher.candidates(truth.queries, most + 1, Effort(probes))
    correct = truth.correct(without(results, truth.numbers).numbers, searcher)
    recall = interval(truth.recalls(correct), truth.at)
    if recall.low < target:
        return None, recall
    for count in _counts(most):
        some = interval(truth.recalls(correct[:, :count]), truth.at)
        if some.low >= target:
            return Effort(probes, count + 1), some
    return None, recall


def _counts(most: int) -> Iterator[int]:
    count = 2 * TUNED_FOR
    while count < most:
        yield count
        count = count * 5 // 4
    yield most
