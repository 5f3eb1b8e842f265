"""Run a job: plan it, skip what the ledger has, have an engine run the rest, and report.

An engine with a driver runs all missing units. A task of a cluster without one (`share`) runs its own share, then what
no other task holds; the one that finds nothing missing finishes the job.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from tarmac.display import redact
from tarmac.errors import DiskFull, JobMismatch, TarmacError, UnitsFailed, UsageError, WorkerDied
from tarmac.jobs.claims import Claims
from tarmac.jobs.engines import Engine, Finished, Work
from tarmac.jobs.entries import public_name
from tarmac.jobs.inputs import check_inputs, check_waiting
from tarmac.jobs.leases import Leases
from tarmac.jobs.ledger import Ledger, open_ledger, written_by_others
from tarmac.jobs.outputs import UNKNOWN_SIZE, existing_sizes, sampled_digests
from tarmac.jobs.report import Report
from tarmac.jobs.share import Share
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.jobs.work import DEFAULT_POLICY, Policy, UnitWork, may_change
from tarmac.progress import track
from tarmac.runtime.budget import ErrorBudget
from tarmac.storage import StorageOptions, can_list, is_local
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE


def run_job(
    task: Task,
    engine: Engine,
    *,
    ledger: str | None = None,
    share: Share | None = None,
    policy: Policy = DEFAULT_POLICY,
    overwrite: bool = False,
    max_errors: int | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    storage: StorageOptions = DEFAULT_STORAGE,
    progress: bool | None = None,
) -> Report:
    """Run the units of a job that are not done. After an error, units in progress are completed and the job stops.

    `ledger` is the URL of the ledger; `overwrite` starts over. `share` is that of this task among several that run
    at the same time. More than `max_errors` failed samples are an error. `retry_failed` runs units again in which
    samples failed. `dry_run` writes nothing and reports what there is to do.
    """
    started = time.monotonic()
    report, shared = Report(task.verb, dry_run=dry_run), share is not None
    if shared and overwrite:
        what = "`overwrite` would start over in every task."
        raise UsageError(what, field="task", hint="another output, or `overwrite` without `task`.")
    with contextlib.ExitStack() as stack:
        records = open_ledger(
            ledger,
            task.verb,
            task.options(),
            overwrite=overwrite,
            dry_run=dry_run,
            shared=shared,
            storage=storage,
            task=task,
        )
        stack.callback(records.close)
        claims = Claims(task.verb, records.job, overwrite, storage, shared)
        stack.callback(claims.close)
        units = _checked_names(task.plan())
        if not dry_run:  # before the task checks that the names are free
            claims.hold((name,) for name in task.writes(units))
        if records.new and not overwrite:
            _check_new(task, units, records, shared=shared)
        if not dry_run:
            records.begin([unit.name for unit in units], task.closing(), task.reads)
        retried = {name for name, (_, outcome) in records.done.items() if retry_failed and outcome.failed}
        kept = records.done.keys() - retried
        recorded = [unit for unit in units if unit.name in kept]
        # A thousand tasks would look at every unit a thousand times: each looks at those of its share.
        own = {unit.name for unit in (units if share is None else share.of(units))}
        outcomes = {unit.name: records.done[unit.name][1] for unit in recorded if unit.name not in own}
        recorded = [unit for unit in recorded if unit.name in own]
        check_inputs(task, engine, recorded, records, ledger, remember=not dry_run, progress=progress)
        check_waiting(task, [unit for unit in units if unit.name not in records.done], records, ledger)
        outcomes |= _completed(recorded, records, storage)
        # A task reports what it has done itself: the others report, and fail, for themselves.
        for outcome in outcomes.values() if share is None else ():
            report.add(outcome)
        report.units, report.kept = len(units), len(outcomes)
        if any(outcome.failed for outcome in outcomes.values()):
            report.remarks.append('failed samples of an earlier run; `retry` "failed" processes them again')
        if dry_run:
            return report
        missing = [unit for unit in units if unit.name not in outcomes]
        if not (records.new or overwrite):
            reject_foreign_outputs(ledger, task.writes(missing))
        task.job = records.identity
        leases = _leases(records, share, storage)
        if leases is not None:
            stack.callback(leases.close)
        # Recorded, but samples failed, or its output is gone: only an entry from now on counts.
        again = {
            unit.name: records.times.get(unit.name, 0.0) for unit in missing if unit.name in records.done
        }
        pending = iter(missing) if share is None else take_share(missing, share, records, leases, again)
        work, budget = UnitWork(task, records.journal, policy), ErrorBudget(max_errors)
        running = run_until_error(
            engine, work, pending, policy, records, leases, total=len(units), shared=shared
        )
        for unit, outcome in track(running, len(missing), task.verb, progress=progress):
            claims.check()
            records.add(unit, outcome)
            outcomes[unit.name] = outcome
            report.done += 1
            report.add(outcome)
            budget.check(report.failed, report.errors[-1] if report.errors else "")
        if share is not None:
            _add_others(units, records, outcomes, report, again)
        report.outcomes = [outcomes[unit.name] for unit in units if unit.name in outcomes]
        if share is None:  # in the order of the plan
            report.errors = [error for outcome in report.outcomes for error in outcome.errors]
        if share is None and len(outcomes) < len(units):
            raise UnitsFailed(f"the engine did not run {len(units) - len(outcomes)} of {len(units)} units.")
        if len(outcomes) == len(units):
            task.finish(report.outcomes)
            remove_stale(records, report, remove=task.lists_outputs, storage=storage)
    report.seconds = time.monotonic() - started
    return report


def _leases(records: Ledger, share: Share | None, storage: StorageOptions) -> Leases | None:
    if records.journal is None or not (is_local(records.journal.url) or can_list(records.journal.url)):
        if share is not None:
            raise UsageError(
                "tasks need an output in a directory, or in a store that can be listed.", field="task"
            )
        return None
    return Leases(records.journal.url, "" if share is None else str(share), storage, records.spelling)


def _check_new(task: Task, units: Sequence[Unit], records: Ledger, *, shared: bool) -> None:
    """Have the task check that a new job can start, unless another task of it has started meanwhile."""
    try:
        task.begin(units)
    except UsageError:
        if not (shared and records.has_begun()):
            raise


def take_share(
    units: Sequence[Unit], share: Share, records: Ledger, leases: Leases | None, again: Mapping[str, float]
) -> Iterator[Unit]:
    """Yield the units of a share, then those of others, from their ends on, that are neither done nor in progress.

    `again` are units that were done before, with the times of their entries.
    """
    own = share.of(units)
    names = {unit.name for unit in own}

    def settled(name: str) -> bool:
        return name in records.failed or _is_done(name, records, again)

    def others() -> Iterator[Unit]:
        records.refresh()  # all entries at once: most of these units are done
        return (unit for unit in reversed(units) if unit.name not in names)

    for unit in (unit for part in (lambda: own, others) for unit in part()):
        if settled(unit.name) or (leases is not None and not leases.try_take(unit.name)):
            continue
        records.refresh(unit.name)  # it may have been done since
        if not settled(unit.name):
            yield unit
        elif leases is not None:
            leases.release(unit.name)


def _is_done(name: str, records: Ledger, again: Mapping[str, float]) -> bool:
    return name in records.done and (name not in again or records.times.get(name, 0.0) > again[name])


def _add_others(
    units: Sequence[Unit],
    records: Ledger,
    outcomes: dict[str, Outcome],
    report: Report,
    again: Mapping[str, float],
) -> None:
    """Add what other tasks have done meanwhile; raise if all units that are missing have failed."""
    records.refresh()
    for unit in units:
        if unit.name not in outcomes and _is_done(unit.name, records, again):
            outcomes[unit.name] = records.done[unit.name][1]
            report.kept += 1
    missing = [unit.name for unit in units if unit.name not in outcomes]
    failed = [name for name in missing if name in records.failed]
    if failed and len(failed) == len(missing):  # nothing else is left to wait for
        raise _units_failed([_named(name, records.failed[name]) for name in failed], len(units), shared=True)
    if missing:
        running = len(missing) - len(failed)
        report.remarks.append(f"{running} of {len(units)} units are in progress in other tasks")


def _units_failed(errors: Sequence[str], units: int, *, shared: bool) -> UnitsFailed:
    hint = "tarmac jobs retry OUTPUT, and then the same tasks again." if shared else UnitsFailed.hint
    what = f"{len(errors)} of {units} units failed, the first of them with: {errors[0]}"
    return UnitsFailed(what, hint=hint)


def _named(unit: str, error: str) -> str:
    """Return an error with the name of its unit, and without its own hint."""
    what, name = error.partition(" Try: ")[0], public_name(unit)
    return what if what.startswith((f"{name}:", f"{name},", f"{name} @")) else f"{name}: {what}"


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
    recorded: Sequence[Unit], records: Ledger, storage: StorageOptions
) -> Iterator[tuple[str, Outcome]]:
    """Yield the recorded units whose outputs still exist."""
    files = {url for unit in recorded for url in records.done[unit.name][1].files}
    existing = existing_sizes(files, storage)
    for unit in recorded:
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


def run_until_error(
    engine: Engine,
    work: Work,
    units: Iterator[Unit],
    policy: Policy,
    records: Ledger,
    leases: Leases | None,
    *,
    total: int,
    shared: bool,
) -> Iterator[tuple[Unit, Outcome]]:
    """Yield completed units. After too many errors, start no more units and raise when the running ones finish."""
    errors: dict[str, Exception] = {}

    def until_error() -> Iterator[Unit]:
        for unit in units:
            if len(errors) > policy.max_failed_units:
                return
            if leases is not None:
                leases.try_take(unit.name, share=True)
            yield unit

    with contextlib.closing(run_units(engine, work, until_error(), policy.retries)) as finished:
        for unit, outcome in finished:
            if isinstance(outcome, Exception):
                errors[unit.name] = outcome
                _record_failure(records, unit, outcome)
            else:
                yield unit, outcome
            if leases is not None:
                leases.release(unit.name)
    if errors:
        first, *others = errors.values()
        if not others or not policy.max_failed_units:
            raise first
        texts = [_named(name, _text(error)) for name, error in errors.items()]
        raise _units_failed(texts, total, shared=shared) from first


def _record_failure(records: Ledger, unit: Unit, error: Exception) -> None:
    """Store why a unit failed. Tasks do not try it again, unless the next run may succeed: a full disk is freed."""
    if records.journal is None:
        return
    if not (may_change(error) or isinstance(error, DiskFull)):
        records.journal.fail(unit, _text(error))
        return
    with contextlib.suppress(TarmacError):  # the store may be out of reach, which is the error
        records.journal.fail(unit, _text(error), passing=True)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, TarmacError) else redact(f"{type(error).__name__}: {error}")


def run_units(engine: Engine, work: Work, units: Iterator[Unit], retries: int) -> Generator[Finished]:
    """Have an engine run units, and again those whose worker died, each up to `retries` times.

    A worker that dies may take the units of others with it. They are run again one by one, so that only the unit fails
    that kills its workers.
    """
    while died := (yield from _run_once(engine, work, units)):
        for unit, death in died:
            for _ in range(retries):
                again = yield from _run_once(engine, work, iter((unit,)))
                if not again:
                    break
                ((_, death),) = again
                death.at(url=unit.name)  # it was alone
            else:
                yield unit, death


def _run_once(
    engine: Engine, work: Work, units: Iterator[Unit]
) -> Generator[Finished, None, list[tuple[Unit, WorkerDied]]]:
    """Have an engine run units; return those whose worker died. Without units, no cluster is started."""
    flying: dict[str, Unit] = {}
    died: list[tuple[Unit, WorkerDied]] = []
    first = next(units, None)
    if first is None:
        return died
    try:
        for unit, outcome in engine.run(work, _noted(chain((first,), units), flying)):
            if flying.pop(unit.name, None) is None:
                continue  # engines may deliver a unit twice
            if isinstance(outcome, WorkerDied):
                died.append((unit, outcome))
            else:
                yield unit, outcome
    except WorkerDied as error:
        died += [(unit, error) for unit in flying.values()]
    return died


def _noted(units: Iterator[Unit], flying: dict[str, Unit]) -> Iterator[Unit]:
    """Yield units, and note which were taken."""
    for unit in units:
        flying[unit.name] = unit
        yield unit


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
