"""Collect the values to sort by, in this process or in several."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tarmac.errors import TarmacError
from tarmac.exact.dataset import Dataset
from tarmac.runtime.lookahead import run_ahead
from tarmac.runtime.processes import can_pickle, result_of, worker_pool
from tarmac.tools.sort.runs import RunFile, Runs
from tarmac.tools.sort.sort_key import SortKey
from tarmac.tools.workdir import disk_errors

RANGE = 1 << 16
"""Samples whose values a process collects at a time; with fewer, starting processes is not worthwhile."""


@dataclass(frozen=True)
class Collector:
    """Collects the values of a dataset; `memory` bounds the bytes that all processes hold together."""

    order: SortKey
    dataset: Dataset
    directory: str
    memory: int
    processes: int = 1

    def into(self, runs: Runs) -> Iterator[TarmacError]:
        """Add the values to runs, and yield the errors of samples without one, in the order of the samples."""
        ranges = [range(len(self.dataset))[start:][:RANGE] for start in range(0, len(self.dataset), RANGE)]
        processes = min(self.processes, len(ranges))
        if processes < 2 or not can_pickle(self):
            yield from self._add(runs, range(len(self.dataset)))
            return
        work = replace(self, memory=self.memory // processes)._run
        with worker_pool(processes, work) as submit:
            for _, future in run_ahead(submit, ranges, processes):
                collected = result_of(future)
                if isinstance(collected, Exception):
                    raise collected
                yield from collected.errors
                if collected.failure is not None:
                    raise collected.failure
                for file in collected.files:
                    runs.add_file(file)

    def _add(self, runs: Runs, numbers: range) -> Iterator[TarmacError]:
        values = self.order.values(self.dataset[numbers.start : numbers.stop])
        for number, value in zip(numbers, values, strict=True):
            if isinstance(value, bytes):
                runs.add(value, number)
            else:
                yield value

    def _run(self, numbers: range) -> _Collected:
        """Write the values of some samples to files."""
        directory, collected = f"{self.directory}/{numbers.start}", _Collected()
        try:
            with disk_errors(directory):
                os.makedirs(directory)
            runs = Runs(directory, self.memory, reverse=self.order.reverse)
            collected.errors.extend(self._add(runs, numbers))
            collected.files.extend(runs.files())
        except TarmacError as error:
            collected.failure = error
        return collected


@dataclass
class _Collected:
    """What a process sends back."""

    files: list[RunFile] = field(default_factory=list)
    errors: list[TarmacError] = field(default_factory=list)
    """The errors of single samples."""
    failure: TarmacError | None = None
    """What stopped the process after these."""
