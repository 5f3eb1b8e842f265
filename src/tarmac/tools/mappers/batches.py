"""Run a mapper on the samples of a shard: prepare each, call the mapper on batches, write a record for each batch."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

from tarmac import environment
from tarmac.errors import CodecError, SampleError, TarmacError, UsageError
from tarmac.extras import MissingExtra
from tarmac.jobs.task import MAX_REASONS, Outcome
from tarmac.runtime.lookahead import PER_WORKER, first_completed, look_ahead
from tarmac.samples.grouping import Sample
from tarmac.tools.chunked import COUNTS, Group
from tarmac.tools.incoming import Incoming
from tarmac.tools.map.functions import Function, failed
from tarmac.tools.mappers.clock import COMPUTING, PREPARING, READING, Clock
from tarmac.tools.mappers.contract import Mapper, defines
from tarmac.tools.mappers.records import FIELD, Array, Ragged, Records, Schema, pack, to_arrow
from tarmac.tools.options import Run

SECONDS = "seconds_of"
"""A detail of an outcome: seconds by activity."""
WINDOW = 8
T = TypeVar("T")
Columns = dict[str, Array | Ragged]


@dataclass(frozen=True)
class MapBatches:
    """A change of the samples of a shard into records."""

    function: Function
    """Makes the mapper in each process."""
    run: Run
    batch_size: int
    threads: int = 1
    """Threads that prepare samples."""
    ahead: int = 0
    """Samples that they prepare while the mapper runs."""
    sorted_batches: int = WINDOW
    """Batches whose items are sorted by size together."""
    timed: bool = False
    """Whether outcomes tell what the time was spent on."""
    reasons: int = MAX_REASONS
    """Failed samples of a unit that its outcome names."""

    @cached_property
    def mapper(self) -> Mapper:
        if multiprocessing.parent_process() is not None:  # one of the processes that share the cores
            environment.limit_threads(self.threads)
        mapper: Any = self.function.prepared
        return mapper  # type: ignore[no-any-return]

    @cached_property
    def schema(self) -> Schema:
        return Schema(dict(self.mapper.outputs), dict(self.mapper.info))

    def __getstate__(self) -> dict[str, Any]:
        names = ("function", "run", "batch_size", "threads", "ahead", "sorted_batches", "timed", "reasons")
        return {name: getattr(self, name) for name in names}

    def __call__(self, samples: Iterator[Sample], outcome: Outcome) -> Iterator[list[Sample]]:
        """Yield a group with one record for each batch, or for several of them whose items were sorted by size."""
        window = self.batch_size * (self.sorted_batches if self._sorts else 1)
        clock = Clock(outcome.details.setdefault(SECONDS, {}) if self.timed else {})
        prepared = self._prepared(samples, window, clock)
        try:
            for rows, items in prepared:
                yield self._group(rows, items, outcome, clock)
        finally:
            prepared.close()

    @property
    def lockstep(self) -> bool:
        """Whether no sample is read before the batch that it belongs to, so that positions need not be noted."""
        return self.threads <= 1

    @cached_property
    def _sorts(self) -> bool:
        return defines(self.mapper, "size")

    def _prepared(
        self, samples: Iterator[Sample], size: int, clock: Clock
    ) -> Generator[tuple[list[Sample], list[Any]]]:
        """Yield `size` samples at a time, with what each was prepared to; that of a bad one is a `_Failure`."""
        if self.threads <= 1:
            return _in_order(self.mapper, samples, size, clock)
        ahead = max(self.threads * PER_WORKER, self.ahead)
        return _in_threads(self.mapper.prepare, samples, self.threads, ahead, size, clock)

    def _group(self, samples: list[Sample], items: list[Any], outcome: Outcome, clock: Clock) -> Group:
        errors = {n: item.error for n, item in enumerate(items) if type(item) is _Failure}
        good = [number for number in range(len(items)) if number not in errors]
        if self._sorts:
            good = self._by_size(items, good, errors)
        results = list[tuple[list[int], Columns]]()
        for start in range(0, len(good), self.batch_size):
            numbers = good[start : start + self.batch_size]
            batch = items if len(numbers) == len(items) and not self._sorts else [items[n] for n in numbers]
            with clock.during(COMPUTING):
                results += self._mapped(batch, numbers, errors)
        for number in sorted(errors):
            self._fail(samples[number], errors[number], outcome)
        group = Group()
        group.inputs = len(samples)
        keys = [sample["__key__"] for number, sample in enumerate(samples) if number not in errors]
        if keys:
            kept = range(len(samples)) if not errors else [n for n in range(len(samples)) if n not in errors]
            columns = self._joined(results, kept)
            counts = outcome.details.setdefault(COUNTS, {})
            for name, value in self._counted(columns).items():
                counts[name] = counts.get(name, 0) + value
            group.append({"__key__": keys[0], FIELD: to_arrow(Records(self.schema, keys, columns))})
        return group

    def _by_size(self, items: list[Any], numbers: list[int], errors: dict[int, Exception]) -> list[int]:
        """Return the numbers of items in the order of their sizes; add the errors of those without one."""
        sizes: dict[int, float] = {}
        for number in numbers:
            try:
                sizes[number] = float(self.mapper.size(items[number]))
            except Exception as error:
                errors[number] = error
        return sorted(sizes, key=lambda number: (sizes[number], number))

    def _mapped(
        self, items: list[Any], numbers: list[int], errors: dict[int, Exception]
    ) -> Iterator[tuple[list[int], Columns]]:
        """Yield the columns of a batch; if the mapper fails, those of each of its items alone."""
        try:
            columns = self._called(items)
        except UsageError:
            raise
        except Exception as error:
            if len(items) == 1:
                errors[numbers[0]] = error
                return
            for item, number in zip(items, numbers, strict=True):
                yield from self._mapped([item], [number], errors)
        else:
            yield numbers, columns

    def _called(self, items: list[Any]) -> Columns:
        result, schema = self.mapper(items), self.schema
        if missing := schema.columns.keys() - result.keys():
            raise UsageError(f"the mapper returned no column {', '.join(sorted(missing))}.")
        if more := result.keys() - schema.columns.keys():
            what = f"the mapper returned the column {', '.join(sorted(more))}, which is not in its `outputs`."
            raise UsageError(what)
        return {name: pack(result[name], column, name, len(items)) for name, column in schema.columns.items()}

    def _joined(self, results: list[tuple[list[int], Columns]], kept: Sequence[int]) -> Columns:
        """Return the columns of all rows that did not fail, in the order of the samples."""
        if len(results) == 1 and not self._sorts:
            return results[0][1]
        rows = {n: (columns, row) for numbers, columns in results for row, n in enumerate(numbers)}
        return {
            name: pack([rows[n][0][name][rows[n][1]] for n in kept], column, name, len(kept))
            for name, column in self.schema.columns.items()
        }

    def _counted(self, columns: Columns) -> dict[str, int]:
        count = getattr(self.mapper, "count", None)
        return count(columns) if callable(count) else {}

    def _fail(self, sample: Sample, error: Exception, outcome: Outcome) -> None:
        """Count a failed sample; raise what is not the fault of a sample."""
        if isinstance(error, MissingExtra | UsageError):
            raise error
        error = error if isinstance(error, TarmacError) else failed(error)
        error.at(url=sample.get("__url__"), key=sample["__key__"])
        if not isinstance(error, SampleError | CodecError):
            raise error
        named = len(outcome.errors)
        self.run.handle(error, outcome)
        if MAX_REASONS <= named < self.reasons:
            outcome.errors.append(str(error))


class _Failure:
    """The error of a sample that could not be prepared."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _in_order(
    mapper: Mapper, samples: Iterator[Sample], size: int, clock: Clock
) -> Generator[tuple[list[Sample], list[Any]]]:
    """Prepare samples in this thread: all of a batch together if the mapper can, which saves a call for each."""
    together, prepare = getattr(mapper, "prepare_all", None), mapper.prepare
    take = samples.take if isinstance(samples, Incoming) else lambda size: list(islice(samples, size))
    while True:
        with clock.during(READING):
            batch = take(size)
        if not batch:
            return
        with clock.during(PREPARING):
            try:
                items = together(batch) if together is not None else None
            except Exception:  # of one of them
                items = None
            if items is None:
                items = [_tried(prepare, sample) for sample in batch]
        yield batch, items


def _in_threads(
    prepare: Callable[[Sample], Any],
    samples: Iterable[Sample],
    threads: int,
    ahead: int,
    size: int,
    clock: Clock,
) -> Generator[tuple[list[Sample], list[Any]]]:
    """Prepare samples in threads, `ahead` of them before they are needed. Waiting for them counts as preparing."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tarmac-prepare")
    read = clock.over(READING, samples)
    try:
        started = look_ahead(lambda sample: (sample, pool.submit(_tried, prepare, sample)), read, ahead)
        while rows := list(islice(started, size)):
            with clock.during(PREPARING):
                items = [first_completed([future]).result() for _, future in rows]
            yield [sample for sample, _ in rows], items
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _tried(prepare: Callable[[Sample], Any], sample: Sample) -> Any:
    try:
        return prepare(sample)
    except Exception as error:
        return _Failure(error)
