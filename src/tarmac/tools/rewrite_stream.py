"""Rewrite a stream: samples that this process reads once, from start to end.

Running it again reads the stream again from its start, and skips writing the shards that exist. A stream
that has other samples than before is detected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

__all__ = ["rewrite_samples", "rewrite_stream"]


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
    plan.balance.book(report)
    if plan.select is not None and not run.dry_run:
        report.remarks += plan.select.judged(tally)
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
    place = None if output.stream else ledger_url(output.pattern, verb)
    facts = output.options() | (options or {})
    book = open_ledger(place, verb, facts, overwrite=output.overwrite, storage=output.storage)
    claims = Claims(verb, book.job, output.overwrite, output.storage)
    try:
        if not output.stream:
            claims.hold([output.pieces(output.pattern), *((name,) for name in output.names(()))])
        if book.new and not output.stream:
            output.check_new(output.names(output.taken()))
        job = _Streaming(verb, changed, total, output, book, claims, place, Sources(read), run.max_errors)
        report = job.run()
        if tally is not None:
            tally.book(total)
            report.read, report.dropped, report.left_out = total.read, total.dropped, total.left_out
        return report
    finally:
        close_change(changed)
        claims.close()
        book.close()


class _Streaming:
    """One run: shard by shard, each written or found to be there."""

    def __init__(
        self,
        verb: str,
        samples: Iterator[Sample],
        total: Outcome,
        output: Output,
        book: Ledger,
        claims: Claims,
        place: str | None,
        sources: Sources,
        max_errors: int | None,
    ) -> None:
        self._samples, self._total, self._output = samples, total, output
        self._book, self._place, self._budget = book, place, ErrorBudget(max_errors)
        self._sources, self._claims = sources, claims
        self._report = Report(verb)
        self._digest = xxhash.xxh3_64()
        self._next: Sample | None = None

    def run(self) -> Report:
        report, output = self._report, self._output
        self._next = next(self._samples, None)
        while self._next is not None or (output.stream and not report.units):  # an empty stream is a tar, too
            if report.units and not output.numbered:
                raise same_name(output.pattern)
            outcome = self._shard(output.pattern if output.stream else output.name(report.units))
            report.units += 1
            report.outcomes.append(outcome)
            report.written += outcome.written
            report.bytes += outcome.bytes
            self._check_budget()
        made = {output.name(number) for number in range(report.units)} if self._book.done else set()
        if self._book.done.keys() - made:
            raise JobMismatch("there are fewer samples than before.", url=self._place)
        self._check_budget()
        total = self._total
        report.read, report.failed, report.errors = total.read, total.failed, total.errors
        report.dropped, report.added = total.dropped, total.added
        output.finish(report.outcomes)
        return report

    def _check_budget(self) -> None:
        self._budget.check(self._total.failed, *self._total.errors[-1:] or [""])

    def _shard(self, name: str) -> Outcome:
        output, report, book = self._output, self._report, self._book
        self._sources.refuse(name)
        self._digest = xxhash.xxh3_64()
        before = completed_outcome(name, book, storage=output.storage)
        if before is not None:
            for _ in self._cut():
                pass
            if book.done[name][0] != self._digest.hexdigest():
                raise JobMismatch(f"the samples of {name} are others than before.", url=self._place)
            report.kept += 1
            return before
        if not report.units:
            book.begin()
        if not output.stream:
            self._claims.hold([(name,)])
        if not (book.new or output.overwrite):
            reject_foreign_outputs(self._place, [name])
        outcome = write_shard(output, name, self._cut(), first=report.written)
        output.run_post_cmd(outcome)
        outcome.sampled_digests = sampled_digests(outcome.outputs)
        self._claims.check()
        book.record(Unit(name, inputs=self._digest.hexdigest()), outcome)
        report.done += 1
        return outcome

    def _cut(self) -> Iterator[Sample]:
        """The samples of one shard; what they are goes into the digest."""
        count = size = 0
        while (sample := self._next) is not None:
            fields = fields_of(sample)
            coming = sum(map(len, fields.values()))
            if self._output.is_full(count, size, coming):
                return
            count, size = count + 1, size + coming
            if self._place is not None:
                self._digest.update(f"{sample['__key__']}\n".encode("utf-8", "surrogateescape"))
                for name, value in fields.items():
                    self._digest.update(f"{name}\0{len(value)}\n".encode("utf-8", "surrogateescape"))
                    self._digest.update(value)
            yield sample
            self._next = next(self._samples, None)
