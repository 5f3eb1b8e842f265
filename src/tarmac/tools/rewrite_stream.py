"""Rewrite a stream: samples that this process reads once, from start to end.

Running it again reads the stream from its start and does not rewrite shards that exist. A stream with other
samples than before is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from tarmac.errors import JobMismatch, UsageError
from tarmac.jobs.claims import Claims
from tarmac.jobs.ledger import Ledger, ledger_url, open_ledger
from tarmac.jobs.outputs import sampled_digests
from tarmac.jobs.report import Report
from tarmac.jobs.run import completed_outcome, reject_foreign_outputs
from tarmac.jobs.task import Outcome, Unit
from tarmac.runtime.budget import ErrorBudget
from tarmac.samples.grouping import Sample
from tarmac.tools.options import Run
from tarmac.tools.output import Output, Sources, fields_of, same_name, write_shard
from tarmac.tools.plan import IndexedSamples, OutputShard, Plan
from tarmac.tools.rewrite import Change, close_change, counted
from tarmac.tools.tally import Tally


def rewrite_stream(
    verb: str,
    plan: Plan,
    output: Output,
    run: Run,
    change: Change | None = None,
    *,
    options: dict[str, Any],
    also_read: Sequence[str] = (),
) -> Report:
    """Write the samples of a plan as they come, to one stream or to shards."""
    (source,) = plan.sources.values()
    tally = Tally()
    shard = OutputShard("", 0, source.size) if isinstance(source, IndexedSamples) else OutputShard("")
    samples = source.samples(shard, tally)
    read = [*source.urls(), *also_read]
    report = rewrite_samples(verb, samples, output, run, change, options=options, read=read, tally=tally)
    plan.balance.add_to(report)
    if plan.select is not None and not run.dry_run:
        report.remarks += plan.select.remarks(tally)
    return report


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
    """Write samples as they come. `options` are what the result depends on, and `read` are the inputs."""
    if "{split" in output.pattern:
        raise UsageError("a stream cannot be split.", url=output.pattern, hint="an output without {split}.")
    if run.dry_run:
        if output.stream:
            return Report(verb, 1)
        raise UsageError("the number of shards of a stream is known only after reading it.", field="dry_run")
    total = Outcome()
    incoming = counted(samples, total)
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
            report.read, report.dropped, report.left_out = total.read, total.dropped, total.left_out
        return report
    finally:
        close_change(changed)
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
            raise JobMismatch("there are fewer samples than before.", url=self.ledger)
        budget.check(total.failed, *total.errors[-1:] or [""])
        report.read, report.failed, report.errors = total.read, total.failed, total.errors
        report.dropped, report.added = total.dropped, total.added
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
