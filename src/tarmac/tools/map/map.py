"""Change samples by a command or a function: filters, conversions and offline augmentation.

The samples that are made come in the order of those they were made from, however many processes there are,
unless that is not wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from tarmac.errors import CodecError, SampleError, UrlError
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome
from tarmac.limits import MIB
from tarmac.runtime.budget import ErrorBudget
from tarmac.runtime.lookahead import run_ahead
from tarmac.runtime.processes import result_of, worker_pool
from tarmac.samples.grouping import Sample
from tarmac.storage import Cache, StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.chunks import chunks
from tarmac.tools.map.commands import Command, Running
from tarmac.tools.map.functions import Function
from tarmac.tools.output import Output
from tarmac.tools.plan import (
    IndexedSamples,
    OutputShard,
    StreamedShards,
    any_remote,
    balance,
    can_index,
    check_one_to_one,
    one_to_one,
    open_indexed,
    selects_by_split,
)
from tarmac.tools.rewrite import RewriteJob, Run, rewrite
from tarmac.tools.rewrite_stream import rewrite_stream
from tarmac.tools.select import Select
from tarmac.tools.tally import Balance, Tally

__all__ = ["map_samples", "Mapping"]

TOGETHER = 64
"""Samples that are handed to another process together, ..."""
TOGETHER_BYTES = MIB
"""... unless they are large."""

Found = list[Sample] | Exception
"""What became of a sample."""


@dataclass(frozen=True)
class Mapping:
    """What is done to the samples of a shard, and to those that fail."""

    work: Command | Function
    on_error: Literal["abort", "skip"] = "abort"
    max_errors: int | None = None
    ordered: bool = True
    """Whether samples come out in the order in which they came, or as they are done."""
    at_once: int = 1
    """Samples of one shard that are worked on at the same time: commands, or processes with the function."""

    def options(self) -> dict[str, Any]:
        """What the result depends on, for a ledger; a job that was stopped may go on with on_error="skip"."""
        return self.work.options() | ({} if self.ordered else {"unordered": True})

    def __call__(self, samples: Iterator[Sample], outcome: Outcome) -> Iterator[Sample]:
        """Yield what becomes of the samples; count what is dropped and what fails."""
        for sample, found in self._each(samples):
            if isinstance(found, Exception):
                self._failed(sample, found, outcome)
            else:
                outcome.dropped += not found
                outcome.added += max(len(found) - 1, 0)
                yield from found

    def _failed(self, sample: Sample, error: Exception, outcome: Outcome) -> None:
        if not isinstance(error, SampleError | CodecError):
            raise error
        error.at(url=sample.get("__url__"), key=sample["__key__"])
        if self.on_error == "abort":
            raise error
        outcome.fail(str(error))
        ErrorBudget(self.max_errors).check(outcome.failed, error)

    def _each(self, samples: Iterator[Sample]) -> Iterator[tuple[Sample, Found]]:
        """Each sample with what becomes of it."""
        if isinstance(self.work, Command):
            return self._by_commands(self.work, samples)
        function = self.work
        if self.at_once > 1:
            return self._by_processes(function, samples)
        return ((sample, _try(function, sample)) for sample in samples)

    def _by_commands(self, command: Command, samples: Iterator[Sample]) -> Iterator[tuple[Sample, Found]]:
        """Even one at a time is done in a thread: an interrupt, which the main thread gets, cannot come
        between the start of a command and its being known.
        """
        running = Running()
        work = partial(_try, partial(command, running=running))
        pool = ThreadPoolExecutor(self.at_once, thread_name_prefix="tarmac-map")
        try:
            submit = partial(pool.submit, work)
            for sample, future in run_ahead(submit, samples, self.at_once, ordered=self.ordered):
                yield sample, future.result()
        finally:
            running.stop()
            pool.shutdown(wait=True, cancel_futures=True)

    def _by_processes(self, function: Function, samples: Iterator[Sample]) -> Iterator[tuple[Sample, Found]]:
        some_at_a_time = chunks(samples, TOGETHER, TOGETHER_BYTES)
        with worker_pool(self.at_once, partial(_try_all, function)) as submit:
            for some, future in run_ahead(submit, some_at_a_time, self.at_once, ordered=self.ordered):
                found = result_of(future)
                if isinstance(found, Exception):  # of the process, not of a sample
                    raise found
                yield from zip(some, found, strict=True)


def _try(work: Callable[[Sample], list[Sample]], sample: Sample) -> Found:
    try:
        return work(sample)
    except Exception as error:
        return error


def _try_all(work: Callable[[Sample], list[Sample]], samples: list[Sample]) -> list[Found]:
    return [_try(work, sample) for sample in samples]


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
) -> Report:
    """Change the samples of shards and write what becomes of them.

    Where there are fewer shards to make than `jobs`, several samples of each are worked on at the same time.
    """
    select = Select(storage=storage) if select is None else select
    storage = select.storage
    once = one_to_one(output, select) and not output.renumbers
    indexed = can_index(urls) and not (any_remote(urls) and once)

    def one(chosen: Select) -> IndexedSamples | StreamedShards:
        if not indexed:
            return StreamedShards(urls, chosen, storage, cache)
        return open_indexed(urls, chosen, storage=storage, cache=cache, show=run.show)

    if output.stream or not (indexed or output.by_shard):
        if select.shares and not select.only:
            raise UrlError("one stream cannot hold several parts; --only chooses one of them.")
        if not (mapping.ordered or output.stream):
            raise UrlError("--unordered: a stream that is cut anew would be cut elsewhere each time.")
        found, tally = one(select), Tally()
        left = Balance()
        if isinstance(found, StreamedShards):
            samples = select.cut(select.of_stream(found.shards(), tally), tally)
        else:
            left = balance(select, [found])
            samples = found.samples(OutputShard("", 0, found.size), tally)
        change = replace(mapping, at_once=jobs)
        facts = mapping.options() | {"select": select.options()}
        judge = None if indexed else select
        more: dict[str, Any] = {"options": facts, "read": urls, "tally": tally, "select": judge}
        report = rewrite_stream("map", samples, output, change, run=run, **more)
        left.book(report)
        return report
    if not indexed:
        check_one_to_one(urls, output)
        if not one_to_one(output, select):
            what = "--slice and --part of shards that cannot be indexed need one output for all of them."
            raise UrlError(what)
    parts = {part: one(chosen) for part, chosen in selects_by_split(select, output).items()}
    task = RewriteJob("map", output, dict(parts), select=None if indexed else select)
    rows = [each for each in parts.values() if isinstance(each, IndexedSamples)]
    task.balance = balance(select, rows) if rows else task.balance
    task.facts = mapping.options() | {"select": select.options()}
    shards = sum(1 for _ in task.plan())
    task.change = replace(mapping, at_once=max(jobs // max(shards, 1), 1))
    return rewrite(task, run)
