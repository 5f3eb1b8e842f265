"""Report what was near what, in samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tarmac.display import plural
from tarmac.jobs.report import Report

_SHOWN = 3


@dataclass(slots=True, repr=False)
class DedupReport(Report):
    """The result of `dedup`: read = written + dropped, the samples that stay and those that are removed."""

    threshold: float = 0.0
    exact: int = 0
    """Removed samples that equal one that stays."""
    near: int = 0
    """Other removed samples: near one that stays, or near one of `against`."""
    leaked: int = 0
    """Removed samples, of both sorts, for which one of `against` stays."""
    groups: int = 0
    largest_groups: list[dict[str, Any]] = field(default_factory=list)
    """The first key, the number of samples and the number of those that stay, of the largest groups."""
    pairs: int = 0
    """Pairs of samples that are near each other."""
    unusable: int = 0
    """Samples that were not compared: vectors of zeros, or without a text. They stay."""
    reused: bool = False
    """Whether the pairs of an earlier run were used."""
    output: str = ""

    def to_dict(self) -> dict[str, Any]:
        result = Report.to_dict(self)
        result.pop("remarks", None)
        own = [name for name in DedupReport.__dataclass_fields__ if name not in Report.__dataclass_fields__]
        return result | {name: getattr(self, name) for name in own}

    def lines(self) -> list[str]:
        """Return what else there is to say, in words."""
        lines = []
        if self.reused:
            lines.append("the pairs were computed before")
        if self.unusable:
            lines.append(
                f"{plural(self.unusable, 'sample')} without direction or text: compared with nothing"
            )
        if self.leaked:
            lines.append(f"{plural(self.leaked, 'sample')} removed for one of the other dataset")
        return lines + [
            f"group of {group['samples']}, {group['stay']} stay: {group['key']} and others"
            for group in self.largest_groups[:_SHOWN]
        ]

    def __str__(self) -> str:
        return (
            f"dedup: {plural(self.read, 'sample')} in, {self.written} stay, {self.dropped} removed "
            f"({self.exact} exact and {self.near} near duplicates, in {plural(self.groups, 'group')})"
        )
