"""Change jobs from outside: have failed units tried again, and finish jobs whose units are all done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tarmac.display import display_url, plural
from tarmac.errors import UsageError
from tarmac.jobs.report import Report
from tarmac.jobs.run import remove_stale
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.closing import close_job
from tarmac.tools.jobs.locate import Job, open_jobs


def retry(
    location: str | os.PathLike[str], units: Sequence[str] = (), *, storage: StorageOptions = DEFAULT_STORAGE
) -> list[str]:
    """Mark the failed units of the jobs at a location, or only the given ones, so that tasks try them again.

    Return their names. Run the tasks again afterwards. A job without tasks always tries them again.
    """
    jobs = open_jobs(location, storage)
    failed = {name for job in jobs for name in job.ledger.failed}
    for unit in units:
        if unit not in failed:
            what = f"this unit has not failed: {unit!r}."
            raise UsageError(what, field="units", hint="one of those that tarmac jobs log shows as failed.")
    marked = []
    for job in jobs:
        journal = job.ledger.journal
        for name in [name for name in sorted(job.ledger.failed) if not units or name in units]:
            if journal is not None:
                journal.retry(name, job.ledger.times.get(name, 0.0))
                marked.append(name)
        job.ledger.close()
    return marked


@dataclass
class Finished:
    """What `finish` did for a job."""

    url: str
    """The directory or URL of the job."""
    verb: str
    missing: int = 0
    """Units that are not done, so that the job could not be finished."""
    written: list[str] = field(default_factory=list)
    """Files that were written."""
    removed_outputs: list[str] = field(default_factory=list)
    """Files of an overwritten job that were removed."""
    stale_outputs: list[str] = field(default_factory=list)
    """Files of an overwritten job that are left."""
    by_command: bool = False
    """Whether only the command of the job can finish it."""

    @property
    def exit_status(self) -> int:
        """The exit status of the command: 3 if units are missing."""
        return 3 if self.missing else 0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return asdict(self) | {"url": display_url(self.url)}

    def __str__(self) -> str:
        if self.missing:
            return f"{self.verb}: {plural(self.missing, 'unit')} missing; run the same command again"
        if self.by_command:
            return (
                f"{self.verb}: run the same command again, which finishes the job; all of its units are done"
            )
        if not self.written:
            return f"{self.verb}: nothing to finish"
        return f"{self.verb}: wrote {', '.join(map(display_url, self.written))}"


def finish(location: str | os.PathLike[str], *, storage: StorageOptions = DEFAULT_STORAGE) -> list[Finished]:
    """Finish the jobs at a location whose units are all done: write the manifest and whatever else needs all units.

    Tasks do it themselves, the last one of them; this is for schedulers that run a command after all tasks. To do it
    twice is harmless.
    """
    return [_finish(job) for job in open_jobs(location, storage)]


def _finish(job: Job) -> Finished:
    result = Finished(job.url, job.verb)
    if (
        job.units is None
    ):  # a stream, or a job of an earlier version, of which only the command knows the units
        result.by_command = True
        return result
    result.missing = sum(name not in job.ledger.done for name in job.units)
    closing = job.plan.get("closing")
    if result.missing:
        return result
    if closing is None:
        result.by_command = True
        return result
    if not closing and not job.ledger.previous:
        return result
    resolve = job.resolver()
    outcomes = job.outcomes
    files = {name: resolve(closing[name]) for name in ("manifest", "classes") if name in closing}
    result.written = close_job(closing | files, outcomes, job.storage)
    report = Report(job.verb, outcomes=outcomes)
    remove_stale(job.ledger, report, storage=job.storage)
    result.removed_outputs, result.stale_outputs = report.removed_outputs, report.stale_outputs
    return result
