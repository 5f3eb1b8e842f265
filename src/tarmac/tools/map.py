"""Change samples by a command or a function: filters, conversions and offline augmentation.

The samples that are made come in the order of those they were made from, however many processes there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from tarmac.errors import CodecError, SampleError, TooManyBadSamples, UrlError
from tarmac.jobs.run import JobReport
from tarmac.jobs.task import Outcome
from tarmac.samples.grouping import Sample
from tarmac.storage import Cache, StorageOptions, scheme_of
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.arrange import (
    Arrangement,
    Piece,
    Rows,
    Streams,
    arranged,
    can_be_indexed,
    far,
    parts_of,
    shard_by_shard,
)
from tarmac.tools.commands import Command, Running
from tarmac.tools.functions import Function
from tarmac.tools.output import Output
from tarmac.tools.remake import Remake, Run, remake
from tarmac.tools.select import Select
from tarmac.tools.streaming import remake_stream

__all__ = ["map_samples", "Mapping"]

AHEAD = 2
"""Samples that are under way for each thread: one that is worked on, and one that waits."""
LOOK_UP = 0.2
"""Seconds after which a thread that waits sees whether it is to end."""


@dataclass(frozen=True)
class Mapping:
    """What is done to the samples of a shard, and to those that fail."""

    work: Command | Function
    on_error: Literal["abort", "skip"] = "abort"
    max_errors: int | None = None
    threads: int = 1
    """Commands of one shard that run at the same time."""

    def options(self) -> dict[str, Any]:
        """What the result depends on, for a ledger; a job that was stopped may go on with on_error="skip"."""
        return self.work.options()

    def __call__(self, samples: Iterator[Sample], outcome: Outcome) -> Iterator[Sample]:
        """Yield what becomes of the samples, in order; count what is dropped and what fails."""
        for sample, made in self._each(samples):
            try:
                found = made()
            except (SampleError, CodecError) as error:
                error.at(url=sample.get("__url__"), key=sample["__key__"])
                if self.on_error == "abort":
                    raise
                outcome.fail(str(error))
                if self.max_errors is not None and outcome.failed > self.max_errors:
                    what = f"{outcome.failed} samples failed, {self.max_errors} may; the last: {error}"
                    raise TooManyBadSamples(what, hint="") from None
                continue
            outcome.dropped += not found
            yield from found

    def _each(self, samples: Iterator[Sample]) -> Iterator[tuple[Sample, Callable[[], list[Sample]]]]:
        """Each sample with a function that gives what becomes of it."""
        if isinstance(self.work, Command):
            running = Running()
            try:
                yield from _ahead(partial(self.work, running=running), samples, self.threads, running)
            finally:
                running.stop()
        else:
            function = self.work
            for sample in samples:
                yield sample, lambda sample=sample: function(sample)  # type: ignore[misc]


Work = Callable[[Sample], list[Sample]]
Due = tuple[Sample, Callable[[], list[Sample]]]


def _ahead(work: Work, samples: Iterator[Sample], threads: int, running: Running) -> Iterator[Due]:
    """Work on some samples at the same time, and give them back in order.

    Even one at a time is done in a thread: an interrupt, which the main thread gets, cannot come between the
    start of a command and its being known.
    """
    waiting: deque[tuple[Sample, Future[list[Sample]]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tarmac-map")
    try:
        for sample in samples:
            waiting.append((sample, pool.submit(work, sample)))
            if len(waiting) >= AHEAD * threads:
                first, future = waiting.popleft()
                yield first, partial(_result, future)
        while waiting:
            first, future = waiting.popleft()
            yield first, partial(_result, future)
    finally:
        running.stop()
        pool.shutdown(wait=True, cancel_futures=True)


def _result(future: Future[list[Sample]]) -> list[Sample]:
    """Wait for a result, and look up now and then: a signal to another thread does not wake this one."""
    while not future.done():
        wait([future], LOOK_UP)
    return future.result()


def map_samples(
    urls: Sequence[str],
    mapping: Mapping,
    output: Output,
    run: Run,
    *,
    select: Select | None = None,
    jobs: int = 1,
    storage: StorageOptions = DEFAULT_STORAGE,
    cache: Cache | None = None,
) -> JobReport:
    """Change the samples of shards and write what becomes of them.

    Where there are fewer shards to make than `jobs`, several commands run at the same time for each.
    """
    select = Select(storage=storage) if select is None else select
    storage = select.storage
    indexed = can_be_indexed(urls) and not (far(urls) and shard_by_shard(output, select))

    def one(chosen: Select) -> Rows | Streams:
        if not indexed:
            return Streams(urls, chosen, storage, cache)
        return arranged(urls, chosen, storage=storage, cache=cache, show=run.show)

    if output.stream or not (indexed or output.by_shard):
        if select.shares and not select.only:
            raise UrlError("one stream cannot hold several parts; --only chooses one of them.")
        if run.dry:
            return JobReport("map")
        found = one(select)
        samples = (
            select.cut(select.of_stream(found.shards()))
            if isinstance(found, Streams)
            else found.samples(Piece("", 0, found.size))
        )
        change = replace(mapping, threads=jobs)
        facts = mapping.options() | {"select": select.options()}
        return remake_stream(
            "map", samples, output, change, options=facts, read=urls, max_errors=run.max_errors
        )
    if not indexed:
        _check_streams(urls, output, select)
    arrangements: dict[str, Arrangement] = {
        part: one(chosen) for part, chosen in parts_of(select, output).items()
    }
    task = Remake("map", output, arrangements)
    task.facts = mapping.options() | {"select": select.options()}
    shards = sum(1 for _ in task.plan())
    task.change = replace(mapping, threads=max(jobs // max(shards, 1), 1))
    return remake(task, run)


def _check_streams(urls: Sequence[str], output: Output, select: Select) -> None:
    if any(scheme_of(url) == "-" for url in urls):
        raise UrlError("standard input has no name to keep.", hint="-o x.tar or 'x-{i:06d}.tar'.")
    if not shard_by_shard(output, select):
        raise UrlError("--slice and --part of shards that cannot be indexed need one output for all of them.")
