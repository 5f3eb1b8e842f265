"""Rewrite samples into new shards: the job under copy, sort, map and join."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.report import Report
from tarmac.jobs.run import run_job
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import plain_key
from tarmac.tools.options import Run
from tarmac.tools.output import Output, Sources, write_shard
from tarmac.tools.plan import IndexedSamples, Plan, SampleSource
from tarmac.tools.tally import Tally, remarks_on_outcomes

Change = Callable[[Iterator[Sample], Outcome], Iterable[Sample]]
"""A transformation of the samples of a shard. It counts its losses in the outcome, and must pickle."""


@dataclass
class RewriteJob(Task):
    """Write samples to shards, each shard by itself."""

    verb: str
    sources: Mapping[str, SampleSource]
    """The samples of each split."""
    output: Output
    change: Change | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the result depends on, for the ledger."""
    also_read: Sequence[str] = ()
    """Inputs besides those of the sources."""

    def options(self) -> dict[str, Any]:
        inputs = {split: source.fingerprint() for split, source in self.sources.items()}
        return {"inputs": inputs} | self.output.options() | self.facts

    def begin(self, units: Sequence[Unit]) -> None:
        self.output.check_new(self.writes(units))

    def plan(self) -> Iterator[Unit]:
        read = [url for source in self.sources.values() for url in source.urls()]
        inputs = Sources([*read, *self.also_read])
        for split, source in self.sources.items():
            for shard in source.shards(self.output, split):
                inputs.check(shard.name)
                yield Unit(shard.name, (split, shard))

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        return self.output.names(unit.name for unit in units)

    def run(self, unit: Unit) -> Outcome:
        split, shard = unit.content
        outcome, tally, source = Outcome(), Tally(), self.sources[split]
        samples = counted(source.samples(shard, tally), outcome)
        changed = samples if self.change is None else self.change(samples, outcome)
        last = shard.stop if isinstance(source, IndexedSamples) and shard.stop < source.size else None
        try:
            write_shard(self.output, shard.name, changed, first=shard.start, last=last, outcome=outcome)
        finally:
            close_change(changed)
        tally.add_to(outcome)
        return outcome

    def commit(self, unit: Unit, outcome: Outcome) -> None:
        self.output.run_post_cmd(outcome)

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        self.output.finish(outcomes)


def close_change(samples: Iterable[Sample]) -> None:
    """Close a transformation that may have processes running, however the writing ended."""
    if isinstance(samples, Generator):
        samples.close()


def counted(samples: Iterator[Sample], outcome: Outcome) -> Iterator[Sample]:
    """Count the samples that are read, and normalise their keys."""
    for sample in samples:
        outcome.read += 1
        key = sample["__key__"]
        yield sample if key[:2] != "./" else sample | {"__key__": plain_key(key)}


def rewrite(
    verb: str,
    plan: Plan,
    output: Output,
    run: Run,
    *,
    change: Change | None = None,
    options: dict[str, Any] | None = None,
    also_read: Sequence[str] = (),
) -> Report:
    """Write the samples of a plan: shard by shard as a job, or in one pass as a stream.

    `options` are what the result depends on besides the inputs and the output.
    """
    if plan.one_pass:
        from tarmac.tools.rewrite_stream import rewrite_stream

        return rewrite_stream(verb, plan, output, run, change, options=options or {}, also_read=also_read)
    task = RewriteJob(verb, plan.sources, output, change, options or {}, also_read)
    report = run_writing(task, output, run, verb)
    if not run.dry_run:
        plan.balance.add_to(report)
        report.remarks += remarks_on_outcomes(plan.select, report)
    return report


def run_writing(task: Task, output: Output, run: Run, name: str) -> Report:
    """Run a job that writes shards; `name` is that of its ledger, beside them."""
    return run_job(
        task,
        run.make_engine(),
        ledger=ledger_url(output.ledger_pattern, name),
        overwrite=output.overwrite,
        max_errors=run.max_errors,
        dry_run=run.dry_run,
        storage=output.storage,
        progress=run.progress,
    )
