"""Report what a job did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tarmac.display import display_url, html_table, plural
from tarmac.jobs.task import Outcome

DROPPED = ("duplicates", "doubles_left_out", "without_a_partner_dropped")
"""Notes that say why samples were dropped; they are part of `dropped`."""
_COUNTS = ("read", "left_out", "added", "written", "failed", "dropped", "bytes")


@dataclass(slots=True, repr=False)
class Report:
    """The result of a verb, in samples: read + added = written + failed + dropped + left_out."""

    verb: str
    units: int = 0
    """Output shards or other units of work."""
    done: int = 0
    """Units completed by this run."""
    kept: int = 0
    """Units that an earlier run had completed."""
    read: int = 0
    written: int = 0
    failed: int = 0
    """Samples lost to errors."""
    dropped: int = 0
    """Samples removed on request, by a function or for missing fields."""
    left_out: int = 0
    """Samples that the selection excludes."""
    added: int = 0
    """Samples created from another sample, beyond the first."""
    bytes: int = 0
    """Payload bytes written."""
    seconds: float = 0.0
    dry_run: bool = False
    """Whether the report only says what there is to do."""
    errors: list[str] = field(default_factory=list)
    """The first errors of each unit."""
    notes: dict[str, int] = field(default_factory=dict)
    """Other counts, by name."""
    remarks: list[str] = field(default_factory=list)
    """Other messages for the user."""
    stale_outputs: list[str] = field(default_factory=list)
    """Outputs of the job that this run replaces, which it neither wrote nor removed: changed files, and objects."""
    removed_outputs: list[str] = field(default_factory=list)
    """Local outputs of the job that this run replaces, which it removed."""
    outcomes: list[Outcome] = field(default_factory=list)
    """The result of each unit, in the order of the plan."""

    @property
    def ok(self) -> bool:
        """Whether no sample failed."""
        return not self.failed

    @property
    def exit_status(self) -> int:
        """The exit status of the command."""
        return 0 if self.ok else 1

    @property
    def outputs(self) -> list[str]:
        """URLs of the shards or files written or kept, in order."""
        return [url for outcome in self.outcomes for url in outcome.outputs]

    def add(self, outcome: Outcome) -> None:
        """Add the counts and errors of a unit."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        self.errors += outcome.errors

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers and messages as JSON."""
        names = ("verb", "units", "done", "kept", *_COUNTS, "errors")
        result = {name: getattr(self, name) for name in names} | self.notes
        result |= {"remarks": self.remarks} if self.remarks else {}
        for name in ("stale_outputs", "removed_outputs"):
            result |= {name: getattr(self, name)} if getattr(self, name) else {}
        return result | {"seconds": round(self.seconds, 3)}

    def __str__(self) -> str:
        if self.dry_run:
            done = f", {self.kept} already done" if self.kept else ""
            return f"{self.verb}: {self.units - self.kept} to do{done}"
        counts = f"{plural(self.read, 'sample')} in"
        counts += f", {self.read - self.left_out} selected" if self.left_out else ""
        counts += f", {self.written} out"
        counts += f", {self.failed} FAILED" if self.failed else ""
        dropped = self.dropped - sum(self.notes.get(name, 0) for name in DROPPED)
        counts += f", {dropped} dropped" if dropped else ""
        for name, number in self.notes.items():
            counts += f", {_noted(number, name)}" if number else ""
        if self.units and self.kept == self.units:
            kept = f"; nothing to do, all {self.units} were already done"
        else:
            kept = f"; {self.kept} of {self.units} were already done" if self.kept else ""
        others = self.done + self.kept < self.units  # do the rest
        empty = "" if self.read or self.kept or others else "; nothing to do: there are no samples"
        return f"{self.verb}: {counts}, {plural(self.bytes, 'byte')}{kept}{empty}"

    def __repr__(self) -> str:
        return f"<Report {self}>"

    def _repr_html_(self) -> str:
        rows = {name: value for name, value in self.to_dict().items() if value and name != "errors"}
        rows |= {"outputs": _shortened(list(map(display_url, self.outputs)))} if self.outputs else {}
        rows |= {"errors": _shortened(self.errors)} if self.errors else {}
        return html_table(str(self), rows)


def _noted(number: int, name: str) -> str:
    """Return a note in words: `2 rows not used`, `1 row not used`."""
    first, *others = name.split("_")
    return " ".join([str(number), first.removesuffix("s") if number == 1 else first, *others])


def _shortened(items: list[str], most: int = 5) -> str:
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more} more" if more > 0 else "")
