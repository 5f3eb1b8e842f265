"""Report what a selection did, in rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tarmac.display import plural
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome
from tarmac.selecting.job import DETAILS

if TYPE_CHECKING:
    from tarmac.selecting.profile import Profile


@dataclass(slots=True, repr=False)
class SelectReport(Report):
    """The result of `select`: rows in = rows out + the sum of those that each filter removed."""

    removed: list[dict[str, Any]] = field(default_factory=list)
    """The filters in their order: `filter`, the `columns` it compared, how many rows it `removed`, and how many of
    them because a value was `unknown`."""
    dirt: dict[str, int] = field(default_factory=dict)
    """What was wrong with the tables, in numbers."""
    profile: Profile | None = None
    """Statistics of the columns, if `stats` asked for them."""

    @classmethod
    def of(cls, report: Report) -> SelectReport:
        """Return the report of a job as one in rows."""
        values = {name: getattr(report, name) for name in Report.__dataclass_fields__}
        details = _details(report.outcomes)
        rows = details.get("rows", {})
        result = cls(**values, removed=rows.get("removed", []), dirt=details.get("dirt", {}))
        result.remarks = [*report.remarks, *result.lines()]
        return result

    def lines(self) -> list[str]:
        """Return what each filter removed, in words."""
        lines = []
        for step in self.removed:
            columns = f" ({', '.join(step['columns'])})" if step.get("columns") else ""
            value = f" {_shown(step['value'])}" if "value" in step else ""
            unknown = (
                f", {step['unknown']} of them because the value is missing" if step.get("unknown") else ""
            )
            lines.append(
                f"{step['filter']}{value}{columns}: removed {plural(step['removed'], 'row')}{unknown}"
            )
        lines += [f"{name.replace('_', ' ')}: {count}" for name, count in self.dirt.items()]
        return lines

    def to_dict(self) -> dict[str, Any]:
        result = Report.to_dict(self)
        result.pop("remarks", None)
        facts = {"removed": self.removed, "dirt": self.dirt}
        return result | facts | ({"profile": self.profile.to_dict()} if self.profile else {})

    def __str__(self) -> str:
        if not self.units:
            return f"select: {plural(self.read, 'row')}, {self.read - self.left_out - self.dropped} selected"
        if self.units and self.kept == self.units:
            return (
                f"select: {plural(self.written, 'row')} in {plural(len(self.outputs), 'file')}; nothing to do"
            )
        files = plural(len(self.outputs), "file")
        return (
            f"select: {plural(self.read, 'row')} in, {self.written} out, {self.read - self.written} removed; "
            f"{files}, {plural(self.bytes, 'byte')}"
        )


def _details(outcomes: list[Outcome]) -> dict[str, Any]:
    details = outcomes[0].details.get(DETAILS) if outcomes else None
    return details if isinstance(details, dict) else {}


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else " ".join(str(value).split())
