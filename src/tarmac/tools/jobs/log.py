"""Show what went wrong in jobs: units that failed, and samples that failed in units that are done."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from tarmac.display import plural
from tarmac.errors import UsageError
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.jobs.locate import Job, open_jobs


@dataclass(frozen=True)
class LogEntry:
    """What is recorded about one unit."""

    job: str
    """The directory or URL of the job."""
    unit: str
    state: str
    """done, running, dead, failed or missing."""
    time: float = 0.0
    """When it was recorded, in seconds since 1970; 0 if that is unknown."""
    error: str = ""
    """Why the unit failed, or is missing."""
    failed: int = 0
    """Samples that failed."""
    errors: list[str] = field(default_factory=list)
    """Why samples failed: the first reasons."""
    details: dict[str, Any] = field(default_factory=dict)
    """Everything else: counts, files, the owner of a unit in progress."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        time = f"{datetime.fromtimestamp(self.time, UTC):%Y-%m-%dT%H:%M:%SZ} " if self.time else ""
        text = f": {self.error}" if self.error else ""
        text += f", {plural(self.failed, 'sample')} FAILED" if self.failed else ""
        return f"{time}{self.state} {self.unit}{text}"

    def lines(self) -> list[str]:
        """Return the reasons and details in words, for the command line."""
        more = self.failed - len(self.errors)
        reasons = [f"FAILED {error}" for error in self.errors] + [f"FAILED … and {more} more"] * bool(more)
        return reasons + [
            f"{name}: {value}" for name, value in self.details.items() if value not in (0, "", {})
        ]


def log(
    location: str | os.PathLike[str], unit: str | None = None, *, storage: StorageOptions = DEFAULT_STORAGE
) -> list[LogEntry]:
    """Return what went wrong in the jobs that write to a location, the latest last.

    These are the units that failed, those in which samples failed, and those that are missing because of an error that
    may not come again, such as a lost connection. With `unit`, return everything that is recorded
    about this unit.
    """
    jobs = open_jobs(location, storage)
    if unit is None:
        entries = [_entry(job, name) for job in jobs for name in _with_errors(job)]
        return sorted(entries, key=lambda entry: entry.time)
    entries = [_entry(job, unit, in_full=True) for job in jobs if unit in _names(job)]
    if not entries:
        units = plural(sum(len(_names(job)) for job in jobs), "unit")
        what = f"none of the {units} has this name: {unit!r}."
        raise UsageError(what, field="unit", hint="the name of an output as tarmac jobs log shows it.")
    return entries


def _names(job: Job) -> set[str]:
    return {*(job.units or ()), *job.ledger.done, *job.ledger.failed}


def _with_errors(job: Job) -> list[str]:
    done = [name for name, (_, outcome) in job.ledger.done.items() if outcome.failed or outcome.errors]
    return [*job.ledger.failed, *job.ledger.passing, *done]


def _entry(job: Job, name: str, *, in_full: bool = False) -> LogEntry:
    ledger, details = job.ledger, dict[str, Any]()
    outcome = ledger.done[name][1] if name in ledger.done else None
    state = "missing" if outcome is None else "done"
    if name in ledger.failed:
        state = "failed"
    if in_full:
        details = {} if outcome is None else asdict(outcome)
        lease = next((each for each in job.leases if each.unit == name), None)
        if lease is not None:
            if state == "missing":
                state = "running" if lease.live else "dead"
            details |= {"owner": lease.owner, "host": lease.host, "pid": lease.pid}
        for shown in ("failed", "errors"):
            details.pop(shown, None)
    return LogEntry(
        job.url,
        name,
        state,
        ledger.times.get(name, 0.0),
        ledger.failed.get(name) or ledger.passing.get(name, ""),
        0 if outcome is None else outcome.failed,
        [] if outcome is None else outcome.errors,
        details,
    )
