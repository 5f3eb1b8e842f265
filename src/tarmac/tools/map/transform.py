"""Apply a command or function to the samples of a shard, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from tarmac.errors import CodecError, SampleError
from tarmac.jobs.task import Outcome
from tarmac.limits import MIB
from tarmac.runtime.lookahead import run_ahead
from tarmac.runtime.processes import result_of, worker_pool
from tarmac.samples.grouping import Sample
from tarmac.tools.chunks import chunks
from tarmac.tools.map.commands import Command, Running
from tarmac.tools.map.functions import Function
from tarmac.tools.options import Run

CHUNK = 64
"""Samples sent to a worker process at a time, ..."""
CHUNK_BYTES = MIB
"""... unless they are large."""

Result = list[Sample] | Exception


@dataclass(frozen=True)
class Transform:
    """A transformation of the samples of a shard."""

    work: Command | Function
    run: Run
    ordered: bool = True
    concurrency: int = 1
    """Samples of one shard in work at a time: commands, or processes that run the function."""

    def options(self) -> dict[str, Any]:
        """Return what the result depends on, for a ledger; `on_error` may change when a job is resumed."""
        return self.work.options() | ({} if self.ordered else {"unordered": True})

    def __call__(self, samples: Iterator[Sample], outcome: Outcome) -> Iterator[Sample]:
        """Yield the new samples; count dropped and failed ones in the outcome."""
        for sample, result in self._results(samples):
            if isinstance(result, list):
                outcome.dropped += not result
                outcome.added += max(len(result) - 1, 0)
                yield from result
            elif isinstance(result, SampleError | CodecError):
                result.at(url=sample.get("__url__"), key=sample["__key__"])
                self.run.handle(result, outcome)
            else:
                raise result

    def _results(self, samples: Iterator[Sample]) -> Iterator[tuple[Sample, Result]]:
        if isinstance(self.work, Command):
            return self._in_threads(self.work, samples)
        if self.concurrency > 1:
            return self._in_processes(self.work, samples)
        return ((sample, _try(self.work, sample)) for sample in samples)

    def _in_threads(self, command: Command, samples: Iterator[Sample]) -> Iterator[tuple[Sample, Result]]:
        # Even a single command runs in a thread: an interrupt, which the main thread receives, must not come
        # between the start of a command and its registration.
        running = Running()
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="tarmac-map")
        submit = partial(pool.submit, partial(_try, partial(command, running=running)))
        try:
            for sample, future in run_ahead(submit, samples, self.concurrency, ordered=self.ordered):
                yield sample, future.result()
        finally:
            running.stop()
            pool.shutdown(wait=True, cancel_futures=True)

    def _in_processes(self, function: Function, samples: Iterator[Sample]) -> Iterator[tuple[Sample, Result]]:
        groups = chunks(samples, CHUNK, CHUNK_BYTES)
        with worker_pool(self.concurrency, partial(_try_all, function)) as submit:
            for chunk, future in run_ahead(submit, groups, self.concurrency, ordered=self.ordered):
                results = result_of(future)
                if isinstance(results, Exception):  # the process failed, not a sample
                    raise results
                yield from zip(chunk, results, strict=True)


def _try(work: Callable[[Sample], list[Sample]], sample: Sample) -> Result:
    try:
        return work(sample)
    except Exception as error:
        return error


def _try_all(work: Callable[[Sample], list[Sample]], samples: list[Sample]) -> list[Result]:
    return [_try(work, sample) for sample in samples]
