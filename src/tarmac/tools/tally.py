"""Where samples went: how many came in, were chosen and had the fields that were wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tarmac.indexing.meta import names_in
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome
from tarmac.samples.grouping import Sample

__all__ = ["Balance", "judged", "some_of", "Tally"]

_SHOWN = 5
_MOST_NAMES = 200
_KEYS, _COLUMNS, _EXAMPLE = "keys_found", "columns_found", "example"
"""Where an outcome keeps what only all units together can judge."""


class Judge(Protocol):
    """A selection that knows what nobody can have meant."""

    def judged(self, tally: Tally) -> list[str]: ...


@dataclass
class Tally:
    """Counts samples as they pass. A stream says only at its end what was not there."""

    seen: int = 0
    """Samples that came in, ..."""
    chosen: int = 0
    """... those of them that the selection chose, ..."""
    passed: int = 0
    """... and those of them that have the fields that were wanted."""
    keys: set[str] = field(default_factory=set)
    """Keys that were listed, and found."""
    columns: Counter[str] = field(default_factory=Counter)
    """For each column of the condition, how many samples have a value."""
    example: str = ""
    """The key of a sample that was not chosen, and what conditions can ask of it, for hints."""
    names: Sequence[str] = ()

    _first: Sample | None = None

    def see(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Count what comes in."""
        for sample in samples:
            if not self.seen:
                self._first = sample
            self.seen += 1
            yield sample
        if self._first is not None and not self.chosen:
            self.example, self.names = self._first["__key__"], names_in(self._first)
        self._first = None

    def choose(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Count what is chosen."""
        for sample in samples:
            self.chosen += 1
            yield sample

    def let_pass(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Count what has all fields."""
        for sample in samples:
            self.passed += 1
            yield sample

    def add(self, other: Tally) -> None:
        """Add what another one counted."""
        self.seen, self.chosen = self.seen + other.seen, self.chosen + other.chosen
        self.passed += other.passed
        self.keys |= other.keys
        self.columns.update(other.columns)
        self.example, self.names = self.example or other.example, self.names or other.names

    def book(self, outcome: Outcome) -> None:
        """Write down what came in, and why not all of it is handed on."""
        outcome.read = self.seen
        outcome.left_out = self.seen - self.chosen
        outcome.dropped += self.chosen - self.passed
        if self.keys:
            outcome.details[_KEYS] = sorted(self.keys)
        if self.columns:
            outcome.details[_COLUMNS] = dict(self.columns)
        if self.example and not self.chosen:
            outcome.details[_EXAMPLE] = [self.example, *self.names[:_MOST_NAMES]]


@dataclass
class Balance:
    """What a selection left out before a job was cut into units, and what there is to say about it."""

    left_out: int = 0
    remarks: list[str] = field(default_factory=list)

    def book(self, report: Report) -> None:
        """Add it to the report of the job."""
        report.read += self.left_out
        report.left_out += self.left_out
        report.remarks += self.remarks


def judged(select: Judge | None, report: Report) -> list[str]:
    """What there is to say about a selection of shards that were read one by one, each for itself."""
    if select is None:
        return []
    tally = Tally(report.read, report.read - report.left_out)
    for outcome in report.outcomes:
        tally.columns.update(outcome.details.get(_COLUMNS, {}))
        tally.keys.update(outcome.details.get(_KEYS, ()))
        if _EXAMPLE in outcome.details:
            tally.example, *tally.names = outcome.details[_EXAMPLE]
    return select.judged(tally)


def some_of(names: Iterable[str]) -> str:
    """Some names, and how many more there are."""
    all_of_them = sorted(names)
    more = len(all_of_them) - _SHOWN
    return ", ".join(map(repr, all_of_them[:_SHOWN])) + (f" and {more} more" if more > 0 else "")
