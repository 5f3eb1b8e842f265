"""Rewrite samples into new shards, under copy, sort, map and join: shard by shard as a job, or as a stream.

A stream is read once, from start to end. Running it again reads it from its start and does not rewrite shards
that exist. A stream whose samples have changed is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from tarmac.errors import JobMismatch, UsageError
from tarmac.jobs.claims import Claims
from tarmac.jobs.ledger import Ledger, ledger_url, open_ledger
from tarmac.jobs.outputs import sampled_digests
from tarmac.jobs.report import Report
from tarmac.jobs.run import completed_outcome, reject_foreign_outputs, remove_stale, run_job
from tarmac.jobs.task import Outcome, Unit
from tarmac.runtime.budget import ErrorBudget
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import plain_key
from tarmac.tools.options import Run
from tarmac.tools.output import Output, ShardTask, Sources, fields_of, same_name, write_shard
from tarmac.tools.plan import IndexedSamples, OutputShard, Plan, SampleSource
from tarmac.tools.tally import Tally

Change = Callable[[Iterator[Sample], Outcome], Iterable[Sample]]
"""A transformation of the samples of a shard. It counts its losses in the outcome, and must pickle."""


@dataclass
class RewriteJob(ShardTask):
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

    def plan(self) -> Iterator[Unit]:
        read = [url for source in self.sources.values() for url in source.urls()]
        inputs = Sources([*read, *self.also_read])
        for split, source in self.sources.items():
            for shard in source.shards(self.output, split):
                inputs.check(shard.name)
                yield Unit(shard.name, (split, shard))

    def run(self, unit: Unit) -> Outcome:
        split, shard = unit.content
        outcome, tally, source = Outcome(), Tally(), self.sources[split]
        samples = _counted(source.samples(shard, tally), outcome)
        changed = samples if self.change is None else self.change(samples, outcome)
        last = shard.stop if isinstance(source, IndexedSamples) and shard.stop < source.size else None
        try:
            write_shard(self.output, shard.name, changed, first=shard.start, last=last, outcome=outcome)
        finally:
            _close(changed)
        tally.add_to(outcome)
        return outcome


def _close(samples: Iterable[Sample]) -> None:
    """Close a transformation that may have processes running, however the writing ended."""
    if isinstance(samples, Generator):
        samples.close()


def _counted(samples: Iterator[Sample], outcome: Outcome) -> Iterator[Sample]:
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
        (source,) = plan.sources.values()
        tally, size = Tally(), source.size if isinstance(source, IndexedSamples) else 0
        samples, read = source.samples(OutputShard("", 0, size), tally), [*source.urls(), *also_read]
        report = rewrite_samples(verb, samples, output, run, change, options=options, read=read, tally=tally)
        plan.balance.add_to(report)
        if plan.select is not None and not run.dry_run:
            report.remarks += plan.select.remarks(tally)
        return report
    task = RewriteJob(verb, plan.sources, output, change, options or {}, also_read)
    report = run_writing(task, run, verb)
    if not run.dry_run:
        plan.add_to(report)
    return report


def run_writing(task: ShardTask, run: Run, name: str) -> Report:
    """Run a job that writes shards; `name` is that of its ledger, beside them."""
    output = task.output
    return run_job(
        task,
        run.make_engine(),
        ledger=ledger_url(output.ledger_pattern, name),
        overwrite=output.overwrite,
        max_errors=run.max_errors,
        retry_failed=run.retry == "failed",
        dry_run=run.dry_run,
        storage=output.storage,
        progress=run.progress,
    )


def rewrite_samples(
    verb: str,
    samples: Iterator[Sample],
    output: Output,
    run: Run,
    change: Change | None = None,
    *,
    options: dict[str, Any] | None = None,
    read: Sequence[str] = (),
    tally: Tally | None = None,
) -> Report:
    """Write samples in the order of the input. `options` are what the result depends on, and `read` are the inputs."""
    if "{split" in output.pattern:
        raise UsageError("a stream cannot be split.", url=output.pattern, hint="an output without {split}.")
    if run.dry_run:
        if output.stream:
            return Report(verb, 1, dry_run=True)
        raise UsageError("the number of shards of a stream is known only after reading it.", field="dry_run")
    if run.retry:
        what = "a stream is processed as a whole, so that single shards cannot be retried."
        raise UsageError(what, field="retry", hint="`overwrite` starts over.")
    total = Outcome()
    incoming = _counted(samples, total)
    changed = iter(incoming if change is None else change(incoming, total))
    ledger = None if output.stream else ledger_url(output.ledger_pattern, verb)
    facts = output.options() | (options or {})
    records = open_ledger(ledger, verb, facts, overwrite=output.overwrite, storage=output.storage)
    claims = Claims(verb, records.job, output.overwrite, output.storage)
    try:
        if not output.stream:
            claims.hold([output.pieces(output.pattern), *((name,) for name in output.names(()))])
            if records.new:
                output.check_new(output.names(output.existing()))
        job = _StreamJob(changed, total, output, records, claims, ledger, Sources(read))
        report = job.run(Report(verb), ErrorBudget(run.max_errors))
        if tally is not None:
            tally.add_to(total)
        for name in ("read", "failed", "errors", "dropped", "added", "left_out"):
            setattr(report, name, getattr(total, name))
        if report.units:
            remove_stale(records, report, storage=output.storage)
        return report
    finally:
        _close(changed)
        claims.close()
        records.close()


@dataclass
class _StreamJob:
    """Write the shards of a stream one after the other, unless they exist already."""

    samples: Iterator[Sample]
    total: Outcome
    output: Output
    records: Ledger
    claims: Claims
    ledger: str | None
    sources: Sources

    def run(self, report: Report, budget: ErrorBudget) -> Report:
        output, total = self.output, self.total
        self._next = next(self.samples, None)
        while self._next is not None or (output.stream and not report.units):  # an empty stream is a tar, too
            if report.units and not output.numbered:
                raise same_name(output.pattern)
            self._write(output.pattern if output.stream else output.name(report.units), report)
            report.units += 1
            budget.check(total.failed, *total.errors[-1:] or [""])
        if self.records.done.keys() - {output.name(number) for number in range(report.units)}:
            raise JobMismatch("the input has fewer samples than in the previous run.", url=self.ledger)
        budget.check(total.failed, *total.errors[-1:] or [""])
        output.finish(report.outcomes)
        return report

    def _write(self, name: str, report: Report) -> None:
        output, records = self.output, self.records
        self.sources.check(name)
        digest = xxhash.xxh3_64()
        outcome = completed_outcome(name, records, storage=output.storage)
        if outcome is not None:
            for _ in self._shard(digest):
                pass
            if records.done[name][0] != digest.hexdigest():
                raise JobMismatch(f"the samples of {name} have changed.", url=self.ledger)
            report.kept += 1
        else:
            if not report.units:
                records.begin()
            if not output.stream:
                self.claims.hold([(name,)])
            if not (records.new or output.overwrite):
                reject_foreign_outputs(self.ledger, [name])
            outcome = write_shard(output, name, self._shard(digest), first=report.written)
            output.run_post_cmd(outcome)
            outcome.sampled_digests = sampled_digests(outcome.outputs)
            self.claims.check()
            records.record(Unit(name, inputs=digest.hexdigest()), outcome)
            report.done += 1
        report.outcomes.append(outcome)
        report.written += outcome.written
        report.bytes += outcome.bytes

    def _shard(self, digest: xxhash.xxh3_64) -> Iterator[Sample]:
        """Yield the samples of one shard, and add them to the digest."""
        count = size = 0
        while (sample := self._next) is not None:
            fields = fields_of(sample)
            next_size = sum(map(len, fields.values()))
            if self.output.is_full(count, size, next_size):
                return
            count, size = count + 1, size + next_size
            if self.ledger is not None:
                digest.update(f"{sample['__key__']}\n".encode("utf-8", "surrogateescape"))
                for name, value in fields.items():
                    digest.update(f"{name}\0{len(value)}\n".encode("utf-8", "surrogateescape"))
                    digest.update(value)
            yield sample
            self._next = next(self.samples, None)
