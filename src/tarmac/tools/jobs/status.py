"""Say how far jobs are: which units are done, running, dead, failed or missing, and how long the rest takes."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from tarmac.display import display_url, html_table, plural
from tarmac.errors import JobMismatch
from tarmac.jobs.leases import Lease
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.jobs.locate import Job, find_jobs, open_job

SLOWEST = 5
"""How many of the slowest units, and of the most frequent errors, are listed."""
_COUNTS = ("read", "written", "failed", "dropped", "left_out", "added", "bytes")
_NAME = re.compile(
    r"\"[^\"]*\"|'[^']*'|0x[0-9a-f]+|[^\s,;]*/[^\s,;:]*|[^\s,;:]+\.[a-z]\w*|\d+(?:\.\d+)?", re.IGNORECASE
)


@dataclass(frozen=True)
class RunningUnit:
    """A unit that a process has begun."""

    unit: str
    owner: str
    """The task that runs it, such as `2/8`; empty if an engine does."""
    host: str
    pid: int
    seconds: float
    """The time since it was begun."""


@dataclass(frozen=True)
class ErrorCount:
    """Errors with the same text apart from names and numbers."""

    count: int
    example: str


@dataclass
class JobStatus:
    """How far a job is, according to its ledger and its leases."""

    url: str
    """The directory or URL of the job."""
    verb: str = ""
    units: int | None = None
    """Number of units; None if it is not known in advance, as with streams."""
    done: int = 0
    running: list[RunningUnit] = field(default_factory=list)
    dead: list[RunningUnit] = field(default_factory=list)
    """Units whose process has ended or does not answer any more. The next run of the job does them."""
    failed: list[str] = field(default_factory=list)
    """Units that failed. Tasks do not try them again before `retry`."""
    missing: int = 0
    """Number of units that have not been begun."""
    samples: dict[str, int] = field(default_factory=dict)
    """What the units that are done have read, written and so on, as in a `Report`."""
    unit_seconds: float = 0.0
    """Mean time of a unit."""
    remaining_seconds: float | None = None
    """Estimated time until all units are done, if some are running."""
    slowest: dict[str, float] = field(default_factory=dict)
    """The seconds of the slowest units."""
    errors: list[ErrorCount] = field(default_factory=list)
    """The most frequent errors, of units and of samples."""
    damage: str = ""
    """Why the ledger cannot be read."""

    @property
    def complete(self) -> bool:
        """Whether all units are done, as far as that is known."""
        return not (self.damage or self.running or self.dead or self.failed or self.missing)

    @property
    def samples_per_second(self) -> float:
        """Samples that one worker reads in a second."""
        seconds = self.unit_seconds * self.done
        return self.samples.get("read", 0) / seconds if seconds else 0.0

    @property
    def exit_status(self) -> int:
        """The exit status of the command: 1 if units have failed or the ledger is damaged."""
        return 1 if self.failed or self.damage else 0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON."""
        rounded = {
            "unit_seconds": round(self.unit_seconds, 3),
            "samples_per_second": round(self.samples_per_second, 3),
            "remaining_seconds": None if self.remaining_seconds is None else round(self.remaining_seconds, 1),
        }
        return asdict(self) | {"url": display_url(self.url)} | rounded

    def __str__(self) -> str:
        if self.damage:
            return self.damage
        total = "" if self.units is None else f" of {self.units}"
        parts = [f"{self.verb}: {self.done}{total} units done"]
        for count, word in (
            (len(self.running), "running"),
            (len(self.dead), "dead"),
            (len(self.failed), "FAILED"),
            (self.missing, "missing"),
        ):
            parts += [f"{count} {word}"] if count else []
        if self.remaining_seconds is not None:
            parts.append(f"about {duration(self.remaining_seconds)} left")
        return ", ".join(parts)

    def lines(self) -> list[str]:
        """Return the details in words, for the command line."""
        lines = []
        if self.samples:  # not of a damaged ledger
            read, written, failed = (self.samples[name] for name in ("read", "written", "failed"))
            failures = f", {failed} FAILED" if failed else ""
            size = plural(self.samples["bytes"], "byte")
            lines.append(f"{plural(read, 'sample')} read, {written} written{failures}, {size}")
        if self.unit_seconds:
            rate = f", {self.samples_per_second:.4g} samples/s" if self.samples_per_second else ""
            lines.append(f"a unit takes {duration(self.unit_seconds)}{rate} per worker")
        lines += [f"running {_described(each)}" for each in self.running]
        lines += [f"dead {_described(each)}" for each in self.dead]
        if self.dead:
            lines.append("the next run of the same command does the dead units")
        if len(self.slowest) > 1:
            slow = ", ".join(f"{name} {duration(seconds)}" for name, seconds in self.slowest.items())
            lines.append(f"slowest: {slow}")
        lines += [f"{each.count} x {each.example}" for each in self.errors]
        if self.failed:
            lines.append("tarmac jobs log shows the failed units; tarmac jobs retry has tasks try them again")
        return lines

    def __repr__(self) -> str:
        return f"<JobStatus {self}>"

    def _repr_html_(self) -> str:
        return html_table(str(self), {name: value for name, value in self.to_dict().items() if value})


def status(location: str | os.PathLike[str], *, storage: StorageOptions = DEFAULT_STORAGE) -> list[JobStatus]:
    """Return how far the jobs are that write to a location: an output directory, pattern or URL, or a job itself.

    It reads what jobs and tasks have recorded beside the output, so it works wherever they run.

    >>> for job in tarmac.tools.jobs.status("out/"):
    ...     job.done, job.units, len(job.failed), job.remaining_seconds
    """
    return [_status(url, storage) for url in find_jobs(location, storage)]


def _status(url: str, storage: StorageOptions) -> JobStatus:
    try:
        return _status_of(open_job(url, storage))
    except JobMismatch as error:
        return JobStatus(url, damage=error.what)


def _status_of(job: Job) -> JobStatus:
    """Return the status of a job."""
    ledger, now = job.ledger, time.time()
    live, dead = _leases(job)
    begun = {lease.unit for lease in (*live, *dead)}
    failed = [name for name in _ordered(job, ledger.failed) if name not in begun]
    done = [name for name in _ordered(job, ledger.done) if name not in begun]
    outcomes = {name: ledger.done[name][1] for name in done}
    total = None if job.units is None else len(job.units)
    missing = 0 if total is None else max(total - len(done) - len(begun) - len(failed), 0)
    seconds = {name: outcome.seconds for name, outcome in outcomes.items() if outcome.seconds > 0}
    mean = sum(seconds.values()) / len(seconds) if seconds else 0.0
    slowest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:SLOWEST]
    reasons = [*ledger.failed.values(), *ledger.passing.values()]
    reasons += [error for each in outcomes.values() for error in each.errors]
    return JobStatus(
        job.url,
        job.verb,
        total,
        len(done),
        [_running(lease, now) for lease in live],
        [_running(lease, now) for lease in dead],
        failed,
        missing,
        {name: sum(getattr(each, name) for each in outcomes.values()) for name in _COUNTS},
        mean,
        _remaining(mean, live, missing + len(dead), now),
        {name: seconds[name] for name in slowest},
        group_errors(reasons),
    )


def _ordered(job: Job, names: Iterable[str]) -> list[str]:
    """Return names in the order of the plan; what is not in it belongs to inputs that were given earlier."""
    known = set(names)
    return [name for name in (known if job.units is None else job.units) if name in known]


def _leases(job: Job) -> tuple[list[Lease], list[Lease]]:
    """Return the live and the dead leases on units that are not done, or are being done again."""
    ledger, live, dead = job.ledger, [], []
    for lease in sorted(job.leases, key=lambda lease: lease.since):
        recorded = lease.unit in ledger.done or lease.unit in ledger.failed
        if recorded and lease.since <= ledger.times.get(lease.unit, 0.0):
            continue  # it is about to be released
        if lease.live:
            live.append(lease)
        elif not recorded:
            dead.append(lease)
    return live, dead


def _running(lease: Lease, now: float) -> RunningUnit:
    return RunningUnit(lease.unit, lease.owner, lease.host, lease.pid, max(now - lease.since, 0.0))


def _remaining(mean: float, live: list[Lease], waiting: int, now: float) -> float | None:
    """Return the time that the running workers need for what they do, and for the units that wait."""
    if not live or not mean:
        return None
    begun = sum(max(mean - (now - lease.since), 0.0) for lease in live)
    return (begun + mean * waiting) / len(live)


def group_errors(errors: Iterable[str], most: int = SLOWEST) -> list[ErrorCount]:
    """Return the most frequent errors; texts that differ only in names and numbers count as one."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for error in errors:
        text = _NAME.sub("…", error)
        counts[text] += 1
        examples.setdefault(text, error)
    return [ErrorCount(count, examples[text]) for text, count in counts.most_common(most)]


def duration(seconds: float) -> str:
    """Return a time in words: `0.25 s`, `12 min`, `3 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes} min"


def _described(each: RunningUnit) -> str:
    owner = f"task {each.owner}, " if each.owner else ""
    return f"{each.unit} ({owner}process {each.pid} on {each.host}) for {duration(each.seconds)}"
