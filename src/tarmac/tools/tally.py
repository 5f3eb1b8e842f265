"""Count samples on their way through a selection, and report what it left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tarmac.indexing.meta import names_in
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome
from tarmac.samples.grouping import Sample

_MAX_NAMES = 200
_KEYS, _COLUMNS, _EXAMPLE = "keys_found", "columns_found", "example"
"""Details of an outcome that are evaluated when all units are done."""


@dataclass
class Tally:
    """Counts of a stream of samples; what is missing is known only at its end."""

    seen: int = 0
    """Samples read."""
    selected: int = 0
    """Samples that the selection keeps."""
    complete: int = 0
    """Selected samples that have the requested fields."""
    keys: set[str] = field(default_factory=set)
    """Listed keys that exist."""
    columns: Counter[str] = field(default_factory=Counter)
    """The number of samples that have a value, for each column of the condition."""
    example: str = ""
    """The key of a sample that was not selected, for hints."""
    names: Sequence[str] = ()
    """The columns that a condition can use for that sample."""

    _first: Sample | None = None

    def see(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            if not self.seen:
                self._first = sample
            self.seen += 1
            yield sample
        if self._first is not None and not self.selected:
            self.example, self.names = self._first["__key__"], names_in(self._first)
        self._first = None

    def select(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            self.selected += 1
            yield sample

    def see_selected(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Count samples of which all are selected."""
        for sample in samples:
            self.seen += 1
            self.selected += 1
            yield sample

    def count_complete(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        for sample in samples:
            self.complete += 1
            yield sample

    def add(self, other: Tally) -> None:
        self.seen, self.selected = self.seen + other.seen, self.selected + other.selected
        self.complete += other.complete
        self.keys |= other.keys
        self.columns.update(other.columns)
        self.example, self.names = self.example or other.example, self.names or other.names

    def add_to(self, outcome: Outcome) -> None:
        """Set the counts of an outcome, and store what `of_report` needs."""
        outcome.read = self.seen
        outcome.left_out = self.seen - self.selected
        outcome.dropped += self.selected - self.complete
        if self.keys:
            outcome.details[_KEYS] = sorted(self.keys)
        if self.columns:
            outcome.details[_COLUMNS] = dict(self.columns)
        if self.example and not self.selected:
            outcome.details[_EXAMPLE] = [self.example, *self.names[:_MAX_NAMES]]

    @classmethod
    def of_report(cls, report: Report) -> Tally:
        """Return the counts of all units of a job."""
        tally = cls(report.read, report.read - report.left_out)
        for outcome in report.outcomes:
            tally.columns.update(outcome.details.get(_COLUMNS, {}))
            tally.keys.update(outcome.details.get(_KEYS, ()))
            if _EXAMPLE in outcome.details:
                tally.example, *tally.names = outcome.details[_EXAMPLE]
        return tally


@dataclass
class Balance:
    """What a selection leaves out before a job is divided into units, and remarks on it."""

    left_out: int = 0
    remarks: list[str] = field(default_factory=list)

    def add_to(self, report: Report) -> None:
        report.read += self.left_out
        report.left_out += self.left_out
        report.remarks += self.remarks
