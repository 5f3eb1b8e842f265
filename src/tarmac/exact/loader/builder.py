"""Build a batch from positions of an epoch: locate, read, decode, collate, and replace bad samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from tarmac.errors import ErrorBudgetExceeded, MismatchedBatch
from tarmac.exact.dataset import Dataset
from tarmac.exact.loader.collate import BatchBuffer
from tarmac.exact.loader.cursor import seeds_of
from tarmac.exact.loader.located import Locations, Packed, read_located, unpack
from tarmac.exact.loader.spool import Spool
from tarmac.exact.loader.stats import Stats
from tarmac.exact.order.epochs import Request
from tarmac.exact.order.mixture import EpochOrder, substitutes
from tarmac.exact.steps import apply_steps
from tarmac.runtime.budget import ErrorBudget
from tarmac.runtime.types import Integers
from tarmac.samples.grouping import Sample
from tarmac.steps.stage import Each, name_sample

AHEAD = 1024
"""Positions whose samples are looked up at a time: that takes hardly longer than those of one batch."""
CHUNK = 32
"""Largest number of samples that a thread works on at a time: handing over costs, and waits for the GIL."""


@dataclass(frozen=True, slots=True)
class BadSample:
    """A sample that could not be used, and the key of its replacement."""

    epoch: int
    position: int
    key: str
    url: str
    error: str
    replaced_by: str


@dataclass(slots=True)
class Result:
    """A batch, its request, the samples that were replaced in it, and where the time went."""

    batch: Any
    request: Request
    bad: list[BadSample] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)


@runtime_checkable
class Collates(Protocol):
    """A step that turns a list of its inputs into a batch of its results, faster than one by one."""

    def collate(self, items: list[Any]) -> Any: ...


def split_last_step(
    dataset: Dataset[Any],
) -> tuple[Dataset[Any], Callable[[list[Any]], Any] | None]:
    """Return a dataset without its last step, and that step's function of a batch, if it has one."""
    last = {part.steps[-1] if part.steps else None for part in dataset._parts}
    step = next(iter(last), None)
    if len(last) != 1 or not isinstance(step, Collates):
        return dataset, None
    parts = [replace(part, steps=part.steps[:-1]) for part in dataset._parts]
    return type(dataset)._of_parts(parts), step.collate


class Good(NamedTuple):
    """An item that could be built, and the key of its sample."""

    key: str
    item: Any


@dataclass(eq=False, slots=True)
class BatchBuilder:
    """Builds batches. None depends on another, so any thread or process can build any batch."""

    samples: Dataset[Any]
    order: EpochOrder
    seed: int | float | str
    collate: Callable[[list[Any]], Any] | None
    max_bad_samples: int
    _model: Good | None = None
    _run: tuple[EpochOrder, Request, Integers] | None = None
    """Samples of consecutive positions, those of the next requests."""

    def indices(self, request: Request) -> Integers:
        """Return the numbers of the samples of a request."""
        order, (epoch, first, size, stride, samples, _) = self.order, request
        if self._run is not None and self._run[0] is order:
            _, begun, indices = self._run
            skipped, rest = divmod(first - begun.first, stride)
            same = (begun.epoch, begun.stride, rest) == (epoch, stride, 0)
            if same and 0 <= skipped <= len(indices) - size:
                return indices[skipped : skipped + size]
        left = max((samples - 1 - first) // stride + 1, 0)
        if size >= min(AHEAD, left):
            return order.at(epoch, request.positions)
        run = request._replace(size=min(AHEAD, left), located=None)
        indices = order.at(epoch, run.positions)
        self._run = order, run, indices
        return indices[:size]

    def model(self) -> Good | None:
        """Return the item whose fields and shapes all others must have; None compares those of each batch.

        With a budget it is the first good item of the dataset. So the samples that differ from it are the same
        for any number of ranks and any batch size.
        """
        if self._model is None and self.max_bad_samples and self.collate is None:
            (seed,) = seeds_of(self.seed, 0, np.zeros(1, np.int64))
            self._model = self.first_good(range(len(self.samples)), seed, self.budget(), lambda item: None)
        return self._model

    def budget(self) -> ErrorBudget:
        return ErrorBudget(self.max_bad_samples, "max_bad_samples")

    def first_good(
        self, indices: Iterable[int], seed: int, budget: ErrorBudget, put: Callable[[Any], None]
    ) -> Good | None:
        """Return the first item that can be built and `put`; the others count as failed."""
        bad: set[int] = set()
        for index in indices:
            if index not in bad:
                (sample,), (steps,) = self.samples._fetcher.fetch([index])
                try:
                    item = apply_steps(steps, sample, seed)
                    put(item)
                except Exception as error:
                    bad.add(index)
                    budget.add(_described(error), url=sample["__url__"], key=sample["__key__"])
                else:
                    return Good(sample["__key__"], item)
        return None

    def begin(
        self,
        request: Request,
        pool: ThreadPoolExecutor | None = None,
        threads: int = 1,
        spool: Spool | None = None,
    ) -> Callable[[], Result]:
        """Start a batch in a pool of `threads` threads, and return a function that waits for it.

        `spool` holds the samples that the request locates.
        """
        batch = _Batch(self, request, spool)
        if pool is None:
            return lambda: batch.finish([batch.fill(range(request.size))])
        futures = [pool.submit(batch.fill, chunk) for chunk in _chunks(request.size, threads)]
        return lambda: batch.finish(_results(futures))


def _chunks(size: int, threads: int) -> list[range]:
    chunk = max(1, min(CHUNK, -(-size // threads)))
    return [range(start, min(start + chunk, size)) for start in range(0, size, chunk)]


def _results(futures: list[Future[Stats]]) -> Iterator[Stats]:
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


class _Batch:
    """A batch under construction."""

    def __init__(self, builder: BatchBuilder, request: Request, spool: Spool | None) -> None:
        self.builder, self.spool = builder, spool
        self.locations: Locations | None = request.located
        if isinstance(request.located, Packed) and spool is not None:
            self.locations = unpack(request.located, spool)
        self.request = request._replace(located=None)
        self.positions = request.positions
        self.indices = builder.indices(request)
        self._seeds: list[int] | None = None
        self.bad: list[BadSample] = []
        self.model = builder.model()
        self.buffer = BatchBuffer(request.size, self.model and self.model.item)
        self.items: list[Any] = [None] * request.size

    @property
    def seeds(self) -> list[int]:
        """The seed of the random steps of each slot."""
        if self._seeds is None:
            self._seeds = seeds_of(self.builder.seed, self.request.epoch, self.positions)
        return self._seeds

    def fill(self, slots: range) -> Stats:
        """Build the items of some slots of the batch."""
        stats = Stats()
        began = time.perf_counter()
        fetched = self._fetch(slots)
        stats.read += time.perf_counter() - began
        for slot, (sample, steps) in zip(slots, fetched, strict=True):
            if not steps and self.builder.collate is not None:
                self.items[slot] = sample
                continue
            began = time.perf_counter()
            try:
                item = sample if not steps else apply_steps(steps, sample, self.seeds[slot])
                built = time.perf_counter()
                self._put(slot, item)
            except Exception as error:
                if isinstance(error, MismatchedBatch):
                    name_sample(error, sample["__url__"], sample["__key__"])
                if not self.builder.max_bad_samples:
                    raise
                self._substitute(slot, sample, error)
                built = time.perf_counter()
            stats.steps += built - began
            stats.collate += time.perf_counter() - built
        return stats

    def _fetch(self, slots: range) -> Iterable[tuple[Sample, tuple[Each, ...]]]:
        """Read the samples of some slots, and return each with its steps."""
        fetcher, locations, spool = self.builder.samples._fetcher, self.locations, self.spool
        if locations is None or spool is None:
            return zip(*fetcher.fetch(self.indices[slots.start : slots.stop]), strict=True)
        others = [slot for slot in slots if locations[slot] is None]
        read = zip(*fetcher.fetch(self.indices[others]), strict=True)
        fetched = []
        for slot in slots:
            located = locations[slot]
            if located is None:
                fetched.append(next(read))
            else:
                steps = fetcher.locate(int(self.indices[slot]))[0].steps
                fetched.append((read_located(located, spool), steps))
        return fetched

    def _put(self, slot: int, item: Any) -> None:
        if self.builder.collate is not None:
            self.items[slot] = item
            return
        try:
            self.buffer.put(slot, item)
        except MismatchedBatch as error:
            first = self.model.key if self.model else self._key(self.buffer.first)
            error.what = f'{error.what.rstrip(".")}, compared with sample "{first}".'
            raise

    def _key(self, slot: int) -> str:
        return self.builder.samples.key(int(self.indices[slot]))

    def _substitute(self, slot: int, sample: Any, error: Exception) -> None:
        """Put the next good item of the window, so that every rank keeps its number of samples.

        Samples that were tried are bad, too, so a search through more of them than the budget ends here.
        """
        builder, position, epoch = self.builder, int(self.positions[slot]), self.request.epoch
        key, url, budget = sample["__key__"], sample["__url__"], builder.budget()
        budget.add(_described(error), url=url, key=key)
        others = substitutes(builder.order, epoch, position)
        good = builder.first_good(others, self.seeds[slot], budget, lambda item: self._put(slot, item))
        if good is None:
            raise ErrorBudgetExceeded("no sample of the dataset can replace it.", url=url, key=key) from error
        self.bad.append(BadSample(epoch, position, key, url, _described(error), good.key))

    def finish(self, chunks: Iterable[Stats]) -> Result:
        """Wait for all chunks and return the batch."""
        stats = sum(chunks, Stats())
        began = time.perf_counter()
        collate = self.builder.collate
        batch = self.buffer.result() if collate is None else collate(self.items)
        stats.collate += time.perf_counter() - began
        stats.samples, stats.batches = len(self.items), 1
        return Result(batch, self.request, sorted(self.bad, key=lambda bad: bad.position), stats)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
