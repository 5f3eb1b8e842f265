"""From positions of an epoch to a batch: find, read, decode, collate, replacing what is damaged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tarmac.errors import ErrorBudgetExceeded
from tarmac.exact.dataset import Dataset
from tarmac.exact.epoch_order import EpochOrder
from tarmac.exact.loader.collate import BatchBuffer
from tarmac.exact.loader.stats import Stats
from tarmac.exact.loader.walk import Request, seeds_of
from tarmac.exact.mix import Mix
from tarmac.exact.steps import apply_steps
from tarmac.steps.stage import Each

__all__ = ["BadSample", "BatchMaker", "Result"]

CHUNK = 32
"""Samples that a thread works on at a time, at most: handing over costs, and waits for Python's lock."""


@dataclass(frozen=True, slots=True)
class BadSample:
    """One entry of the ledger: a sample that could not be used, and what stood in for it."""

    epoch: int
    position: int
    key: str
    url: str
    error: str
    replaced_by: str


@dataclass(slots=True)
class Result:
    """A batch, what was asked for, what was replaced in it, and where the time went."""

    batch: Any
    request: Request
    bad: list[BadSample] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)


class BatchMaker:
    """Makes batches; keeps nothing between two of them, so any thread or process can make any."""

    def __init__(
        self,
        dataset: Dataset | Mix,
        order: EpochOrder,
        *,
        seed: int | str,
        collate: Callable[[list[Any]], Any] | None,
        bad: int,
    ) -> None:
        self.dataset = dataset
        self.order = order
        self.seed = seed
        self.collate = collate
        self.bad = bad

    def begin(
        self, request: Request, pool: ThreadPoolExecutor | None = None, threads: int = 1
    ) -> Callable[[], Result]:
        """Begin a batch, in a pool of so many threads; what is returned waits for it and hands it out."""
        filling = _Filling(self, request)
        if pool is None:
            return lambda: filling.finish([filling.fill(part) for part in _parts(request.size, 1)])
        futures = [pool.submit(filling.fill, part) for part in _parts(request.size, threads)]
        return lambda: filling.finish(_results(futures))

    @property
    def together(self) -> Dataset:
        """The samples that batches are made of, as one dataset."""
        return self.dataset.together if isinstance(self.dataset, Mix) else self.dataset

    def steps(self) -> list[Each]:
        """Everything that is done to samples."""
        return [step for part in self.together.parts for step in part.steps]

    def after_fork(self) -> None:
        """Let go of what a forked process must not share with its parent."""
        self.together.after_fork()


def _parts(size: int, threads: int) -> list[range]:
    """Share out the places of a batch."""
    chunk = max(1, min(CHUNK, -(-size // threads)))
    return [range(start, min(start + chunk, size)) for start in range(0, size, chunk)]


def _results(futures: list[Future[Stats]]) -> Iterator[Stats]:
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


class _Filling:
    """One batch in work."""

    def __init__(self, maker: BatchMaker, request: Request) -> None:
        self.maker, self.request = maker, request
        self.positions = request.positions
        self.indices = maker.order.at(request.epoch, self.positions)
        self.seeds = seeds_of(maker.seed, request.epoch, self.positions)
        self.bad: list[BadSample] = []
        self.buffer = BatchBuffer(request.size)
        self.items: list[Any] = [None] * request.size

    def fill(self, places: range) -> Stats:
        """Make the items of some places and put them into the batch."""
        stats, maker, put = Stats(), self.maker, self._put
        began = time.perf_counter()
        pairs = maker.dataset.fetch(self.indices[places.start : places.stop])
        stats.read += time.perf_counter() - began
        for place, (sample, steps) in zip(places, pairs, strict=True):
            began = time.perf_counter()
            try:
                item = sample if not steps else apply_steps(steps, sample, self.seeds[place])
            except Exception as error:
                item = self._substitute(place, sample, error, maker)
            made = time.perf_counter()
            put(place, item)
            stats.steps += made - began
            stats.collate += time.perf_counter() - made
        return stats

    def _put(self, place: int, item: Any) -> None:
        if self.maker.collate is None:
            self.buffer.put(place, item)
        else:
            self.items[place] = item

    def _substitute(self, place: int, sample: Any, error: Exception, maker: BatchMaker) -> Any:
        """The next good sample of the window stands in, so that every rank keeps its number of samples."""
        if not maker.bad:
            raise error
        position = int(self.positions[place])
        for index in maker.order.substitutes(self.request.epoch, position):
            ((other, steps),) = maker.dataset.fetch([index])
            try:
                item = apply_steps(steps, other, self.seeds[place])
            except Exception:  # noqa: S112 - it is bad itself, and is reported at its own position
                continue
            self.bad.append(
                BadSample(
                    self.request.epoch,
                    position,
                    sample["__key__"],
                    sample["__url__"],
                    f"{type(error).__name__}: {error}",
                    other["__key__"],
                )
            )
            return item
        raise ErrorBudgetExceeded(
            "no sample of the window can be used.", url=sample["__url__"], key=sample["__key__"]
        ) from error

    def finish(self, parts: Any) -> Result:
        """Wait for all chunks and hand out the batch."""
        stats = sum(parts, Stats())
        began = time.perf_counter()
        collate = self.maker.collate
        batch = self.buffer.result() if collate is None else collate(self.items)
        stats.collate += time.perf_counter() - began
        stats.samples, stats.batches = len(self.items), 1
        return Result(batch, self.request, sorted(self.bad, key=lambda bad: bad.position), stats)
