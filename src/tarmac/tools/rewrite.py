"""Make shards from samples: the job under copy, sort, map and join."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tarmac.jobs.ledger import ledger_place
from tarmac.jobs.run import Engine, JobReport, run_job
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import plain_key
from tarmac.tools.output import Output, Sources, write_shard
from tarmac.tools.plan import IndexedSamples, SampleSource
from tarmac.tools.select import Select
from tarmac.tools.tally import Balance, Tally, judged

__all__ = ["Change", "close_change", "counted", "rewrite", "RewriteJob", "Run", "run_writing"]

Change = Callable[[Iterator[Sample], Outcome], Iterable[Sample]]
"""What is done to the samples of a shard. It counts what it loses in the outcome; it must pickle."""


@dataclass(frozen=True)
class Run:
    """The Run flags: how a job is run."""

    engine: Engine
    dry: bool = False
    max_errors: int | None = None
    show: bool | None = None


@dataclass
class RewriteJob(Task):
    """Shards made of samples: which, in which order, what is done to them, and where they go."""

    verb: str
    output: Output
    sources_by_split: dict[str, SampleSource]
    """By part; one without a name where there are no parts."""
    change: Change | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the result depends on."""
    also_read: Sequence[str] = ()
    """Shards that are read besides those of the arrangements."""
    select: Select | None = None
    """What was chosen, where that shows only when the shards are read."""
    balance: Balance = field(default_factory=Balance)

    def options(self) -> dict[str, Any]:
        inputs = {part: sample_source.fingerprint() for part, sample_source in self.sources_by_split.items()}
        return {"inputs": inputs} | self.output.options() | self.facts

    def begin(self, units: Sequence[Unit]) -> None:
        self.output.check_new(self.writes(units))

    def plan(self) -> Iterator[Unit]:
        read = [url for sample_source in self.sources_by_split.values() for url in sample_source.sources()]
        sources = Sources([*read, *self.also_read])
        for part, sample_source in self.sources_by_split.items():
            for piece in sample_source.pieces(self.output, part):
                sources.refuse(piece.name)
                yield Unit(piece.name, (part, piece))

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        return self.output.names(unit.name for unit in units)

    def run(self, unit: Unit) -> Outcome:
        part, piece = unit.content
        outcome, tally, sample_source = Outcome(), Tally(), self.sources_by_split[part]
        samples = counted(sample_source.samples(piece, tally), outcome)
        made = samples if self.change is None else self.change(samples, outcome)
        last = (
            piece.stop
            if isinstance(sample_source, IndexedSamples) and piece.stop < sample_source.size
            else None
        )
        try:
            write_shard(self.output, piece.name, made, first=piece.start, last=last, outcome=outcome)
        finally:
            close_change(made)
        tally.book(outcome)
        return outcome

    def commit(self, unit: Unit, outcome: Outcome) -> None:
        self.output.after(outcome)

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        self.output.finish(outcomes)


def close_change(samples: Iterable[Sample]) -> None:
    """End a change that may have something running, however the writing ended."""
    if isinstance(samples, Generator):
        samples.close()


def counted(samples: Iterator[Sample], outcome: Outcome) -> Iterator[Sample]:
    """Count the samples that are looked at, and give them keys that can be written."""
    for sample in samples:
        outcome.read += 1
        key = sample["__key__"]
        yield sample if key[:2] != "./" else sample | {"__key__": plain_key(key)}


def rewrite(task: RewriteJob, run: Run) -> JobReport:
    """Run the job; what it has made is remembered beside its output."""
    report = run_writing(task, task.output, run, task.verb)
    if not run.dry:
        task.balance.book(report)
        report.remarks += judged(task.select, report)
    return report


def run_writing(task: Task, output: Output, run: Run, name: str) -> JobReport:
    """Run a job that writes shards; `name` is what its ledger is called beside them."""
    return run_job(
        task,
        run.engine,
        ledger=ledger_place(output.pattern, name),
        anew=output.overwrite,
        most_failed=run.max_errors,
        dry=run.dry,
        storage=output.storage,
        show=run.show,
    )
