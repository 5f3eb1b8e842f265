"""Notice that the inputs of finished units have changed, even under the same name, size and time.

A unit records the status of the files that it reads (size, times, inode or ETag) and a digest of what it read. An
equal status means equal inputs. A different one may mean as little as a changed mode or a copy, so then the unit is
read again, and only different content is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from tarmac.errors import ArchiveError, IndexingError, JobMismatch
from tarmac.jobs.engines import Engine
from tarmac.jobs.ledger import Ledger
from tarmac.jobs.statuses import changed_inputs, named_inputs, new_outcome, without_statuses
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.progress import track


def check_inputs(
    task: Task,
    engine: Engine,
    units: Sequence[Unit],
    records: Ledger,
    ledger: str | None,
    *,
    remember: bool = True,
    progress: bool | None = None,
) -> None:
    """Raise JobMismatch if the inputs of a recorded unit have changed.

    The engine reads those units again whose inputs have another status. If their content is the same, `remember`
    records the new status, so that the next run need not read them.
    """
    differing = list(_differing(task, units, records))
    for unit in differing:
        if not records.done[unit.name][1].content:
            raise _mismatch(task, unit, records.done[unit.name][1], ledger)
    reading = engine.run(partial(_read_again, task), iter(differing)) if differing else iter(())
    for unit, result in track(reading, len(differing), "reading inputs again", progress=progress):
        outcome = records.done[unit.name][1]
        if isinstance(result, ArchiveError | IndexingError):
            raise _mismatch(task, unit, outcome, ledger) from result
        if isinstance(result, Exception):
            raise result
        if result.content != outcome.content:
            raise _mismatch(task, unit, outcome, ledger)
        if remember:
            details = without_statuses(outcome.details) | result.details
            records.record(unit, replace(outcome, inputs=result.inputs, details=details))


def check_waiting(task: Task, units: Sequence[Unit], records: Ledger, ledger: str | None) -> None:
    """Raise JobMismatch if an input of a unit that was never done is not the one that the job began with.

    Nothing is known about its content, so that its size, and its modification time or ETag, must be the same.
    """
    begun = (records.plan().get("inputs") or {}) if records.done else {}
    current = task.reads() if begun and units else {}
    changed = {url for url, status in current.items() if url in begun and begun[url][:2] != list(status)[:2]}
    for unit in units if changed else ():
        if names := changed & task.statuses(unit).keys():
            what = f"inputs of {unit.name} have changed since the job began: {named_inputs(names)}."
            raise JobMismatch(what, url=ledger)


def _differing(task: Task, units: Sequence[Unit], records: Ledger) -> Iterator[Unit]:
    for unit in units:
        inputs, outcome = records.done[unit.name]
        if inputs != task.inputs(unit) and (outcome.content or inputs != task.earlier_inputs(unit)):
            yield unit


def _read_again(task: Task, unit: Unit) -> Outcome:
    """Return the digest of the inputs of a unit, and their status before they were read."""
    inputs, outcome = task.inputs(unit), new_outcome(task.statuses(unit))
    outcome.inputs, outcome.content = inputs, task.content(unit)
    return outcome


def _mismatch(task: Task, unit: Unit, outcome: Outcome, ledger: str | None) -> JobMismatch:
    """Return the error that names the unit and, where it is known, the input that has changed."""
    changed = named_inputs(changed_inputs(outcome, task.statuses(unit)))
    what = f"the inputs of {unit.name} have changed since it was written"
    hint = (
        f'`retry` "failed" processes the shards again in which samples failed; {JobMismatch.hint}'
        if outcome.failed
        else JobMismatch.hint
    )
    return JobMismatch(f"{what}: {changed}." if changed else f"{what}.", url=ledger, hint=hint)
