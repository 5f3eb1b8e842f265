"""The job of a mapper: a shard of records for each input shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome, Unit
from tarmac.runtime.cores import usable_cores
from tarmac.runtime.device import devices
from tarmac.tools.chunked import COUNTS
from tarmac.tools.options import Run
from tarmac.tools.output import Output
from tarmac.tools.rewrite import RewriteJob


@dataclass(frozen=True)
class RecordOutput(Output):
    """Where parts are written. Records are numbered in each part, so that streams need not be counted in advance."""

    @property
    def renumbers(self) -> bool:
        return False


@dataclass
class MapperJob(RewriteJob):
    """Write records. Numbers count samples, not records: each sample is a row, or it failed."""

    def run(self, unit: Unit) -> Outcome:
        outcome = super().run(unit)
        outcome.written = outcome.read + outcome.added - outcome.left_out - outcome.failed - outcome.dropped
        return outcome


def one_per_gpu(run: Run) -> Run:
    """Return the settings with a process for each GPU, unless the number of processes is given."""
    names = devices(run.device)
    return run if run.jobs is not None or names == ["cpu"] else replace(run, jobs=len(names))


def preparing_threads(run: Run, shards: int, *, gpu: bool) -> int:
    """Return how many threads prepare samples in each process: the cores that no process uses."""
    per_gpu = usable_cores() // run.workers if gpu and devices(run.device) != ["cpu"] else 1
    return max(run.workers // max(shards, 1), per_gpu, 1)


def add_counts(report: Report, outcomes: Sequence[Outcome]) -> None:
    """Add the numbers that the mapper counted to a report."""
    total = Counter[str]()
    for outcome in outcomes:
        total.update(outcome.details.get(COUNTS, {}))
    report.notes |= total
