"""Run a job: what is missing, wherever the engine says, and one report of it all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tarmac.errors import ErrorBudgetExceeded, JobMismatch, UrlError
from tarmac.jobs.claims import Claims
from tarmac.jobs.ledger import Ledger, made_by_others, open_ledger
from tarmac.jobs.outputs import UNTOLD, marks_of, sizes_there
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.progress import progress
from tarmac.storage import StorageOptions, is_local
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE

__all__ = ["Engine", "JobReport", "refuse_others", "run_job", "still_there"]

DROPPED = ("doubles_left_out", "without_a_partner_dropped")
"""Notes that say why samples were dropped."""
Work = Callable[[Unit], Outcome]
Finished = tuple[Unit, Outcome | Exception]


class Engine(Protocol):
    """Something that runs units: processes of this machine, or other machines."""

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Finished]:
        """Do all units and yield each with what came of it, as they end; take no more than it can do soon.

        An exception of `work` is yielded, not raised. Whoever stops iterating wants nothing more done.
        """


@dataclass(slots=True)
class JobReport:
    """What a job did, and what had been done before."""

    verb: str
    units: int = 0
    done: int = 0
    """Units that were done now, ..."""
    kept: int = 0
    """... and those that were there already."""
    read: int = 0
    written: int = 0
    failed: int = 0
    dropped: int = 0
    left_out: int = 0
    """Samples that a selection did not choose. read + added = written + failed + dropped + left_out."""
    added: int = 0
    bytes: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    """What else was counted, by what it is; DROPPED are parts of `dropped`."""
    remarks: list[str] = field(default_factory=list)
    """What else people should know."""
    stale_outputs: list[str] = field(default_factory=list)
    """What an earlier job of the same name made, and this one did not replace."""
    outcomes: list[Outcome] = field(default_factory=list)
    """What came of each unit, in the order of the plan."""

    @property
    def ok(self) -> bool:
        """Whether nothing was lost."""
        return not self.failed

    def add(self, outcome: Outcome) -> None:
        """Count what came of a unit."""
        self.read += outcome.read
        self.written += outcome.written
        self.failed += outcome.failed
        self.dropped += outcome.dropped
        self.left_out += outcome.left_out
        self.added += outcome.added
        self.bytes += outcome.bytes
        self.errors += outcome.errors

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        counts = ("read", "left_out", "added", "written", "failed", "dropped", "bytes")
        names = ("verb", "units", "done", "kept", *counts, "errors")
        numbers = {name: getattr(self, name) for name in names} | self.notes
        numbers |= {"remarks": self.remarks} if self.remarks else {}
        numbers |= {"left_over": self.stale_outputs} if self.stale_outputs else {}
        return numbers | {"seconds": round(self.seconds, 3)}

    def __str__(self) -> str:
        lost = f", {self.failed} FAILED" if self.failed else ""
        dropped = self.dropped - sum(self.notes.get(name, 0) for name in DROPPED)
        lost += f", {dropped} dropped" if dropped else ""
        for name, number in self.notes.items():
            lost += f", {number} {name.replace('_', ' ')}" if number else ""
        kept = f"; {self.kept} of {self.units} were done before" if self.kept else ""
        if self.kept == self.units and self.units:
            kept = f"; nothing to do, all {self.units} were done before"
        chosen = f", {self.read - self.left_out} selected" if self.left_out else ""
        empty = "; nothing to do: there are no samples" if not self.read else ""
        counts = f"{self.read} samples in{chosen}, {self.written} out{lost}"
        return f"{self.verb}: {counts}, {self.bytes} bytes{kept}{empty}"


def run_job(
    task: Task,
    engine: Engine,
    *,
    ledger: str | None = None,
    anew: bool = False,
    most_failed: int | None = None,
    dry: bool = False,
    storage: StorageOptions = DEFAULT_STORAGE,
    show: bool | None = None,
) -> JobReport:
    """Do what is missing of a job. The first error ends it, when the units under way are done.

    `ledger` is where to remember what is done, `anew` forgets it. More than `most_failed` lost samples are an
    error. `dry` writes nothing: the report then says what there would be to do.
    """
    begun = time.monotonic()
    report = JobReport(task.verb)
    book = open_ledger(ledger, task.verb, task.options(), anew=anew, dry=dry, storage=storage)
    claims = Claims(task.verb, book.job, anew, storage)
    try:
        outcomes: dict[str, Outcome] = {}
        units = _named_once(task.plan())
        if not dry:  # before it looks whether names are free
            claims.hold((name,) for name in task.writes(units))
        if book.new and not anew:
            task.begin(units)
        if not dry:
            book.begin()
        outputs = (_outputs(book.done[unit.name][1]) for unit in units if unit.name in book.done)
        there = sizes_there({url for some in outputs for url in some}, storage)
        for unit in units:
            before = _done_before(task, unit, book, ledger, there)
            if before is not None:
                outcomes[unit.name] = before
                report.add(before)
        report.units, report.kept = len(units), len(outcomes)
        if dry:
            return report
        missing = [unit for unit in units if unit.name not in outcomes]
        if not (book.new or anew):
            refuse_others(ledger, task.writes(missing))
        for unit, outcome in _until_error(engine, partial(_work, task), missing, show, task.verb):
            claims.check()
            book.record(unit, outcome)
            outcomes[unit.name] = outcome
            report.done += 1
            report.add(outcome)
            if most_failed is not None and report.failed > most_failed:
                raise ErrorBudgetExceeded(
                    f"{report.failed} samples failed, {most_failed} may; the last: {outcome.errors[-1:]}."
                )
        report.outcomes = [outcomes[unit.name] for unit in units]
        report.errors = [error for outcome in report.outcomes for error in outcome.errors]
        task.finish(report.outcomes)
        report.stale_outputs = _left_over(book, report.outcomes)
    finally:
        claims.close()
        book.close()
        report.seconds = time.monotonic() - begun
    return report


def _left_over(book: Ledger, outcomes: Iterable[Outcome]) -> list[str]:
    """What a job that was begun anew had made and does not make any more: a pattern would find it, too."""
    made = {url for outcome in outcomes for url in outcome.outputs}
    before = {url for _, outcome in book.before.values() for url in outcome.outputs}
    return sorted(url for url in before - made if is_local(url) and os.path.exists(local_path(url)))


def _work(task: Task, unit: Unit) -> Outcome:
    """Do one unit; this is what engines run, wherever they are."""
    begun = time.monotonic()
    outcome = task.run(unit)
    task.commit(unit, outcome)
    if marks := marks_of(outcome.outputs):
        outcome.facts["marks"] = marks
    outcome.seconds = time.monotonic() - begun
    return outcome


def _named_once(plan: Iterable[Unit]) -> list[Unit]:
    units, names = list(plan), set()
    for unit in units:
        if unit.name in names:
            raise UrlError("two units of the job would both be this.", url=unit.name, hint="x-{i:06d}.tar")
        names.add(unit.name)
    return units


def _until_error(
    engine: Engine, work: Work, units: list[Unit], show: bool | None, verb: str
) -> Iterator[tuple[Unit, Outcome]]:
    """Yield what is done. After an error nothing new is begun, and it is raised when the rest has ended."""
    problem: Exception | None = None

    def wanted() -> Iterator[Unit]:
        for unit in units:
            if problem is not None:
                return
            yield unit

    for unit, outcome in progress(engine.run(work, wanted()), len(units), verb, show=show):
        if isinstance(outcome, Exception):
            problem = problem or outcome
        else:
            yield unit, outcome
    if problem is not None:
        raise problem


def _done_before(
    task: Task, unit: Unit, book: Ledger, place: str | None, there: dict[str, int]
) -> Outcome | None:
    """What the ledger says of a unit, if that is made from the same and is still there."""
    if unit.name in book.done and book.done[unit.name][0] != task.inputs(unit):
        raise JobMismatch(f"what {unit.name} is made from has changed since it was made.", url=place)
    return still_there(unit.name, book, there)


def refuse_others(ledger: str | None, names: Iterable[str]) -> None:
    """Refuse to replace what another job has made since this one was begun."""
    for name, verb in made_by_others(ledger, names).items():
        hint = "another name, or --overwrite to replace it."
        raise JobMismatch(f"`tarmac {verb}` made this file since this job was begun.", url=name, hint=hint)


def _outputs(outcome: Outcome) -> dict[str, int]:
    return {} if outcome.facts.get("removed") else outcome.outputs | outcome.facts.get("beside", {})


def still_there(
    name: str,
    book: Ledger,
    there: dict[str, int] | None = None,
    *,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> Outcome | None:
    """What the ledger says of a unit, if what it made is still there; `there` are the sizes of what is."""
    if name not in book.done:
        return None
    outcome = book.done[name][1]
    outputs = _outputs(outcome)
    there = sizes_there(outputs, storage) if there is None else there
    same = (
        url in there and (there[url] == size or UNTOLD in (there[url], size)) for url, size in outputs.items()
    )
    if not all(same):
        return None
    marks = outcome.facts.get("marks", {}) if outputs else {}
    return outcome if marks_of(marks) == marks else None
