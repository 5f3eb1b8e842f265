"""Report a download: how many rows have which status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from tarmac.display import display_url, plural
from tarmac.downloading.job import COUNTS
from tarmac.downloading.status import SUCCESS
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome

_SHOWN = 4


@dataclass(slots=True, repr=False)
class DownloadReport(Report):
    """The report of `download`. Rows that fail are usual: the run fails only if most of them do."""

    statuses: dict[str, int] = field(default_factory=dict)
    """The number of rows with each status."""
    max_failed: float = 1.0

    @property
    def ok(self) -> bool:
        """Whether enough rows were fetched."""
        return self.failed <= self.max_failed * self.read

    @property
    def exit_status(self) -> int:
        """The exit status of the command."""
        return 0 if self.ok else 1

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, for JSON."""
        return Report.to_dict(self) | {"statuses": self.statuses}

    def __str__(self) -> str:
        if self.dry_run:
            return Report.__str__(self)
        others = sorted(
            (item for item in self.statuses.items() if item[0] != SUCCESS), key=lambda item: -item[1]
        )
        shown = ", ".join(f"{number} {name}" for name, number in others[:_SHOWN])
        more = sum(number for _, number in others[_SHOWN:])
        shown += f", {more} others" if more else ""
        share = f" ({self.written / self.read:.1%})" if self.read else ""
        kept = f"; {self.kept} of {self.units} were already done" if self.kept else ""
        head = f"{self.verb}: {plural(self.read, 'row')}, {self.written} fetched{share}"
        return f"{head}{': ' if shown else ''}{shown}, {plural(self.bytes, 'byte')}{kept}"


def counts_of(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Return how many rows of units have which status."""
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.details.get(COUNTS, {}))
    return counts


def combine(report: Report, rounds: list[tuple[Report, Counter[str]]], max_failed: float) -> DownloadReport:
    """Return the report of a download and its later rounds; these have rows that had failed, with their statuses."""
    total = DownloadReport(
        **{each.name: getattr(report, each.name) for each in fields(Report)}, max_failed=max_failed
    )
    statuses = counts_of(report.outcomes)
    for later, before in rounds:
        statuses.subtract(before)
        statuses.update(counts_of(later.outcomes))
        for name in ("units", "done", "kept", "written", "dropped", "bytes", "seconds"):
            setattr(total, name, getattr(total, name) + getattr(later, name))
        total.failed += later.failed - later.read
        total.outcomes = [*total.outcomes, *later.outcomes]
    total.statuses = {name: number for name, number in statuses.most_common() if number}
    total.errors = []
    total.remarks = [remark for remark in total.remarks if not remark.startswith("failed samples")]
    names = [name for each in total.outcomes for name in each.companions if name.endswith(".parquet")]
    if names and not total.ok:
        why = f"the column error_message of {display_url(names[0])} says why"
        total.remarks.append(
            f'{total.failed} of {total.read} rows failed: {why}; `retry` "failed" repeats them'
        )
    return total
