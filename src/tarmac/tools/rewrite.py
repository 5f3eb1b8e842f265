"""Rewrite samples into new shards, under copy, sort, map and join: shard by shard as a job, or as a stream.

A stream is read once, from start to end. Running it again reads it from its start and does not rewrite shards
that exist. A stream whose samples have changed is an error.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash

from tarmac.errors import JobMismatch, UsageError
from tarmac.jobs.chunks import Chunks, chunk_directory, clear_all
from tarmac.jobs.claims import Claims
from tarmac.jobs.ledger import Ledger, ledger_url, open_ledger
from tarmac.jobs.outputs import sampled_digests
from tarmac.jobs.report import Report
from tarmac.jobs.run import completed_outcome, reject_foreign_outputs, remove_stale
from tarmac.jobs.spelling import relative_name
from tarmac.jobs.statuses import new_outcome
from tarmac.jobs.task import Outcome, Unit
from tarmac.runtime.budget import ErrorBudget
from tarmac.samples.grouping import Sample
from tarmac.tools.chunked import ChunkedShard, close
from tarmac.tools.content import Content
from tarmac.tools.incoming import Incoming
from tarmac.tools.options import Checkpoints, Run
from tarmac.tools.output import Output, ShardTask, Sources, fields_of, same_name, write_shard
from tarmac.tools.plan import IndexedSamples, OutputShard, Plan, SampleSource
from tarmac.tools.reading import Rereading, with_plain_keys
from tarmac.tools.tally import Tally

Change = Callable[[Iterator[Sample], Outcome], Iterable[list[Sample]]]
"""A transformation of the samples of a shard: the results of each sample. It counts its losses in the outcome, and
must pickle."""

_CHUNKS = "chunks"
"""A detail of an outcome: there are chunks to remove when the unit is recorded."""


@dataclass
class RewriteJob(Rereading, ShardTask):
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
    checkpoints: Checkpoints | None = None
    """When the samples of an unfinished shard are saved; never, if they are not changed."""
    again: bool = False
    """Whether samples that failed before are processed again."""
    earlier_facts: dict[str, Any] = field(default_factory=dict)
    """Those of the facts that earlier versions recorded in another way."""

    def options(self) -> dict[str, Any]:
        inputs = {split: source.fingerprint() for split, source in self.sources.items()}
        return {"inputs": inputs} | self.output.options() | self.facts

    def earlier_options(self) -> dict[str, Any]:
        inputs = {split: source.earlier_fingerprint() for split, source in self.sources.items()}
        return self.options() | {"inputs": inputs} | self.earlier_facts

    def plan(self) -> Iterator[Unit]:
        read = [url for source in self.sources.values() for url in source.urls()]
        inputs = Sources([*read, *self.also_read])
        for split, source in self.sources.items():
            for shard in source.shards(self.output, split):
                inputs.check(shard.name)
                yield Unit(shard.name, (split, shard))

    def run(self, unit: Unit) -> Outcome:
        split, shard = unit.content
        source, chunks, outcome = self.sources[split], self._chunks(unit), new_outcome(self.statuses(unit))
        last = shard.stop if isinstance(source, IndexedSamples) and shard.stop < source.size else None
        if chunks is not None and self.change is not None and self.checkpoints is not None:
            target = ChunkedShard(
                self.output, shard, source, self.change, chunks, self.checkpoints, last, self.again
            )
            target.write(outcome)
            if chunks.exist:
                outcome.details[_CHUNKS] = True
            return outcome
        tally, content = Tally(), Content()
        stage: Iterable[Any]
        changed: Iterable[Sample]
        if self.change is None:
            changed = stage = with_plain_keys(content.over(source.samples(shard, tally)))
        else:
            stage = self.change(Incoming.of(source, shard, tally, content), outcome)
            changed = itertools.chain.from_iterable(stage)
        try:
            write_shard(self.output, shard.name, changed, first=shard.start, last=last, outcome=outcome)
        finally:
            close(stage)
        tally.add_to(outcome)
        outcome.content = str(content)
        return outcome

    def clean_up(self, unit: Unit, outcome: Outcome) -> None:
        chunks = self._chunks(unit) if outcome.details.get(_CHUNKS) else None
        if chunks is not None:
            chunks.clear()

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        super().finish(outcomes)
        if self.checkpoints and self.change is not None:
            clear_all(ledger_url(self.output.ledger_pattern, self.verb), self.output.storage)

    def _chunks(self, unit: Unit) -> Chunks | None:
        """Return where the samples of an unfinished shard are saved, if they are."""
        if not self.checkpoints or self.change is None or self.output.stream:
            return None
        ledger = ledger_url(self.output.ledger_pattern, self.verb)
        split, shard = unit.content
        content = repr((split, replace(shard, name="")))  # which depends on how the output is spelt
        facts = "\0".join((self.job, relative_name(ledger, unit.name), self.inputs(unit), content))
        fingerprint = hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()
        chunks = Chunks(chunk_directory(ledger, unit.name), fingerprint, self.output.storage)
        return chunks if chunks.usable else None


def _counted(samples: Iterator[Sample], outcome: Outcome) -> Iterator[Sample]:
    """Count the samples that are read."""
    for sample in samples:
        outcome.read += 1
        yield sample


def rewrite(
    verb: str,
    plan: Plan,
    output: Output,
    run: Run,
    *,
    change: Change | None = None,
    options: dict[str, Any] | None = None,
    earlier_options: dict[str, Any] | None = None,
    also_read: Sequence[str] = (),
    checkpoints: Checkpoints | None = None,
) -> Report:
    """Write the samples of a plan: shard by shard as a job, or in one pass as a stream.

    `options` are what the result depends on besides the inputs and the output; `earlier_options` are those of them
    that earlier versions recorded in another way. `checkpoints` say when the samples of an unfinished shard are saved.
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
    again = run.retry == "failed"
    task = RewriteJob(
        verb,
        plan.sources,
        output,
        change,
        options or {},
        also_read,
        checkpoints,
        again,
        earlier_options or {},
    )
    report = run_writing(task, run, verb)
    if not run.dry_run:
        plan.add_to(report)
    return report


def run_writing(task: ShardTask, run: Run, name: str) -> Report:
    """Run a job that writes shards; `name` is that of its ledger, beside them."""
    output = task.output
    ledger = ledger_url(output.ledger_pattern, name)
    return run.run_job(task, ledger, overwrite=output.overwrite, storage=output.storage)


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
    if run.distributed:
        what = "a stream is read by one process, so it can be divided neither among machines nor among tasks."
        field = "engine" if run.task is None else "task"
        raise UsageError(what, field=field, url=output.pattern, hint="plain shards as input and output.")
    if run.retry:
        what = "a stream is processed as a whole, so that single shards cannot be retried."
        raise UsageError(what, field="retry", hint="`overwrite` starts over.")
    for field in ("unit_timeout", "max_failed_units"):
        if getattr(run, field):
            what = "a stream is processed as a whole: it has no units that could fail one by one."
            raise UsageError(what, field=field, hint="plain shards as input and output.")
    total = Outcome()
    incoming = with_plain_keys(_counted(samples, total))
    groups = None if change is None else change(incoming, total)
    changed = incoming if groups is None else itertools.chain.from_iterable(groups)
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
        close(incoming if groups is None else groups)
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
