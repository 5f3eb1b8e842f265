"""The job of a mapper: a shard of records for each input shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome, Unit
from tarmac.tools.chunked import COUNTS
from tarmac.tools.rewrite import RewriteJob


@dataclass
class MapperJob(RewriteJob):
    """Write records. Numbers count samples, not records: each sample is a row, or it failed."""

    def run(self, unit: Unit) -> Outcome:
        outcome = super().run(unit)
        outcome.written = outcome.read + outcome.added - outcome.left_out - outcome.failed - outcome.dropped
        return outcome


def add_counts(report: Report, outcomes: Sequence[Outcome]) -> None:
    """Add the numbers that the mapper counted to a report."""
    total = Counter[str]()
    for outcome in outcomes:
        total.update(outcome.details.get(COUNTS, {}))
    report.notes |= total
