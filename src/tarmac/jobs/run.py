"""Run a job: plan it, skip what the ledger has, have an engine run the rest, and report."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from functools import partial

from tarmac.errors import JobMismatch, UsageError
from tarmac.jobs.claims import Claims
from tarmac.jobs.engines import Engine, Work
from tarmac.jobs.ledger import Ledger, open_ledger, written_by_others
from tarmac.jobs.outputs import UNKNOWN_SIZE, existing_sizes, sampled_digests
from tarmac.jobs.report import Report
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.progress import track
from tarmac.runtime.budget import ErrorBudget
from tarmac.storage import StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE


def run_job(
    task: Task,
    engine: Engine,
    *,
    ledger: str | None = None,
    overwrite: bool = False,
    max_errors: int | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    storage: StorageOptions = DEFAULT_STORAGE,
    progress: bool | None = None,
) -> Report:
    """Run the units of a job that are not done. After an error, units in progress are completed and the job stops.

    `ledger` is the URL of the ledger; `overwrite` starts over. More than `max_errors` failed samples are an
    error. `retry_failed` runs units again in which samples failed. `dry_run` writes nothing and reports what there
    is to do.
    """
    started = time.monotonic()
    report = Report(task.verb, dry_run=dry_run)
    records = open_ledger(
        ledger, task.verb, task.options(), overwrite=overwrite, dry_run=dry_run, storage=storage
    )
    claims = Claims(task.verb, records.job, overwrite, storage)
    try:
        units = _checked_names(task.plan())
        if not dry_run:  # before the task checks that the names are free
            claims.hold((name,) for name in task.writes(units))
        if records.new and not overwrite:
            task.begin(units)
        if not dry_run:
            records.begin()
        retried = {name for name, (_, outcome) in records.done.items() if retry_failed and outcome.failed}
        recorded = [unit for unit in units if unit.name in records.done.keys() - retried]
        outcomes = dict(_completed(task, recorded, records, ledger, storage))
        for outcome in outcomes.values():
            report.add(outcome)
        report.units, report.kept = len(units), len(outcomes)
        if any(outcome.failed for outcome in outcomes.values()):
            report.remarks.append('failed samples of an earlier run; `retry` "failed" processes them again')
        if dry_run:
            return report
        missing = [unit for unit in units if unit.name not in outcomes]
        if not (records.new or overwrite):
            reject_foreign_outputs(ledger, task.writes(missing))
        budget = ErrorBudget(max_errors)
        for unit, outcome in _run_until_error(engine, partial(_run_unit, task), missing, task.verb, progress):
            claims.check()
            records.record(unit, outcome)
            outcomes[unit.name] = outcome
            report.done += 1
            report.add(outcome)
            budget.check(report.failed, report.errors[-1] if report.errors else "")
        report.outcomes = [outcomes[unit.name] for unit in units]
        report.errors = [error for outcome in report.outcomes for error in outcome.errors]
        task.finish(report.outcomes)
        remove_stale(records, report, remove=task.lists_outputs, storage=storage)
    finally:
        claims.close()
        records.close()
        report.seconds = time.monotonic() - started
    return report


def _checked_names(plan: Iterable[Unit]) -> list[Unit]:
    units, names = list(plan), set()
    for unit in units:
        if unit.name in names:
            raise UsageError(
                "two outputs would have this name.",
                url=unit.name,
                hint="add {i:06d} to the name of the output.",
            )
        names.add(unit.name)
    return units


def _completed(
    task: Task, recorded: list[Unit], records: Ledger, ledger: str | None, storage: StorageOptions
) -> Iterator[tuple[str, Outcome]]:
    """Yield the recorded units whose outputs still exist; raise if their inputs changed."""
    files = {url for unit in recorded for url in records.done[unit.name][1].files}
    existing = existing_sizes(files, storage)
    for unit in recorded:
        if records.done[unit.name][0] != task.inputs(unit):
            hint = (
                f'`retry` "failed" processes the shards again in which samples failed; {JobMismatch.hint}'
                if records.done[unit.name][1].failed
                else JobMismatch.hint
            )
            what = f"the inputs of {unit.name} have changed since it was written."
            raise JobMismatch(what, url=ledger, hint=hint)
        outcome = completed_outcome(unit.name, records, existing)
        if outcome is not None:
            yield unit.name, outcome


def completed_outcome(
    name: str,
    records: Ledger,
    existing: dict[str, int] | None = None,
    *,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> Outcome | None:
    """Return the recorded outcome of a unit if its files still exist unchanged, else None.

    `existing` holds the sizes of existing files; without it they are looked up.
    """
    if name not in records.done:
        return None
    outcome = records.done[name][1]
    if existing is None:
        existing = existing_sizes(outcome.files, storage)
    for url, size in outcome.files.items():
        if url not in existing or (existing[url] != size and UNKNOWN_SIZE not in (existing[url], size)):
            return None
    digests = {} if outcome.removed else outcome.sampled_digests
    return outcome if sampled_digests(digests) == digests else None


def reject_foreign_outputs(ledger: str | None, names: Iterable[str]) -> None:
    """Raise JobMismatch if another job has written one of these files since this job started."""
    for name, verb in written_by_others(ledger, names).items():
        hint = "another name, or `overwrite` to replace it."
        raise JobMismatch(f"`tarmac {verb}` wrote this file after this job had started.", url=name, hint=hint)


def _run_unit(task: Task, unit: Unit) -> Outcome:
    """Run one unit; this is what engines execute."""
    started = time.monotonic()
    outcome = task.run(unit)
    task.commit(unit, outcome)
    outcome.sampled_digests = sampled_digests(outcome.outputs)
    outcome.seconds = time.monotonic() - started
    return outcome


def _run_until_error(
    engine: Engine, work: Work, units: list[Unit], verb: str, progress: bool | None
) -> Iterator[tuple[Unit, Outcome]]:
    """Yield completed units. After an error, start no more units and raise it when the running ones finish."""
    first_error: Exception | None = None

    def until_error() -> Iterator[Unit]:
        for unit in units:
            if first_error is not None:
                return
            yield unit

    for unit, outcome in track(engine.run(work, until_error()), len(units), verb, progress=progress):
        if isinstance(outcome, Exception):
            first_error = first_error or outcome
        else:
            yield unit, outcome
    if first_error is not None:
        raise first_error


def remove_stale(
    records: Ledger, report: Report, *, remove: bool = True, storage: StorageOptions = DEFAULT_STORAGE
) -> None:
    """Remove outputs of overwritten jobs that this one did not write again, since patterns would match them.

    The report lists what was removed, and what is left: files that changed after the job had written them, and
    objects, which stores do not remove.
    """
    outcomes = [outcome for _, outcome in records.previous.values()]
    written = {url: outcome for outcome in outcomes for url in outcome.outputs if not outcome.removed}
    existing = existing_sizes(written.keys() - set(report.outputs), storage)
    for url in sorted(url for url, size in existing.items() if size != UNKNOWN_SIZE):
        outcome = written[url]
        digest = outcome.sampled_digests.get(url)
        if not remove or digest is None or sampled_digests([url]) != {url: digest}:
            report.stale_outputs.append(url)
            continue
        for file in (url, *(filter(is_local, outcome.companions) if len(outcome.outputs) == 1 else ())):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(local_path(file))
        report.removed_outputs.append(url)
    records.settle()
