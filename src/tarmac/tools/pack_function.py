"""Make shards from the samples of a function: they come once, in order, so they are written in order.

Running it again runs the function again, from its beginning; shards that are there are not written again. A
function that gives other samples than before is noticed by their keys and sizes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import xxhash

from tarmac.codecs import Encoder, encode_field, find_encoder
from tarmac.errors import JobMismatch, MissingField, TarmacError, TooManyBadSamples, UrlError
from tarmac.jobs.ledger import Ledger, ledger_place, open_ledger
from tarmac.jobs.run import JobReport
from tarmac.jobs.task import Outcome, Unit
from tarmac.samples.grouping import Sample
from tarmac.storage import is_local
from tarmac.storage.local import local_path
from tarmac.tools.functions import load_function
from tarmac.tools.output import Output, fields_of, several_shards, write_shard
from tarmac.tools.pack import Making, check_sample, with_default_size
from tarmac.tools.remake import Run, remake_stream
from tarmac.tools.sources.generator import generated

__all__ = ["pack_function"]


def pack_function(
    spec: str, arguments: Sequence[str], output: Output, run: Run, *, making: Making | None = None
) -> JobReport:
    """Pack what `module:function` gives when it is called with these arguments."""
    making = making or Making()
    output = with_default_size(output)
    if making.shuffle or making.part or making.total_shards > 1 or output.by_shard:
        raise UrlError("samples of a function come as they come: no --shuffle, --part, --shard-id, {name}.")
    if run.dry:
        raise UrlError("--dry-run: only the function knows what it will give.")
    function = load_function(spec)

    def samples(_: Any, outcome: Outcome) -> Iterator[Sample]:
        return _encoded(generated(function, arguments), making, outcome)

    if output.stream:
        return remake_stream("pack", iter(()), output, samples)
    options = {"py": spec, "arguments": list(arguments)} | making.options() | output.options()
    place = ledger_place(output.pattern, "pack")
    book = open_ledger(place, "pack", options, anew=output.overwrite, storage=output.storage)
    try:
        book.begin()
        return _Packing(output, book, place, run.max_errors).run(samples)
    finally:
        book.close()


@lru_cache(maxsize=1000)
def _encoder(name: str) -> Encoder:
    return find_encoder(name)


def _encoded(samples: Iterator[dict[str, Any]], making: Making, outcome: Outcome) -> Iterator[Sample]:
    """Samples as bytes; what cannot be written is an error, or counted."""
    for sample in samples:
        outcome.read += 1
        key = sample["__key__"]
        try:
            made: Sample = {"__key__": key}
            for name, value in fields_of(sample).items():
                made[name] = encode_field(name, value, _encoder(name), key)
            check_sample(made)
            lacking = making.require - {name.lower() for name in made}
            if lacking:
                raise MissingField(f"the sample has no {', '.join(sorted(lacking))}.", key=key)
        except TarmacError as error:
            if making.on_error == "abort":
                raise
            outcome.fail(str(error.at(key=key)))
        else:
            yield made


class _Packing:
    """One run: shard by shard, each written or found to be there."""

    def __init__(self, output: Output, book: Ledger, place: str, most_failed: int | None) -> None:
        self._output, self._book, self._place, self._most_failed = output, book, place, most_failed
        self._digest = xxhash.xxh3_64()
        self._next: Sample | None = None

    def run(self, samples: Callable[[Any, Outcome], Iterator[Sample]]) -> JobReport:
        report, total = JobReport("pack"), Outcome()
        stream = samples(None, total)
        self._next = next(stream, None)
        while self._next is not None:
            if report.units and not self._output.numbered:
                raise several_shards(self._output.pattern)
            outcome = self._shard(self._output.name(report.units), stream, report)
            report.units += 1
            report.outcomes.append(outcome)
            report.written += outcome.written
            report.bytes += outcome.bytes
            if self._most_failed is not None and total.failed > self._most_failed:
                raise TooManyBadSamples(f"{total.failed} samples failed, {self._most_failed} may.")
        names = {self._output.name(number) for number in range(report.units)}
        if self._book.done.keys() - names:
            raise JobMismatch("the function gives fewer samples than before.", url=self._place)
        report.read, report.failed, report.errors = total.read, total.failed, total.errors
        self._output.finish(report.outcomes)
        return report

    def _shard(self, name: str, stream: Iterator[Sample], report: JobReport) -> Outcome:
        before = self._before(name)
        self._digest = xxhash.xxh3_64()
        if before is None:
            if self._book.new:
                self._output.check_new([name])
            outcome = write_shard(self._output, name, self._cut(stream), first=report.written)
            self._output.after(outcome)
            self._book.record(Unit(name, inputs=self._digest.hexdigest()), outcome)
            report.done += 1
            return outcome
        for _ in self._cut(stream):
            pass
        inputs, outcome = before
        if inputs != self._digest.hexdigest():
            raise JobMismatch(f"the function gives other samples for {name} than before.", url=self._place)
        report.kept += 1
        return outcome

    def _before(self, name: str) -> tuple[str, Outcome] | None:
        """What the ledger says of a shard, if it is still there."""
        entry = self._book.done.get(name)
        if entry is None or entry[1].facts.get("removed"):
            return entry
        for url, size in entry[1].outputs.items():
            if is_local(url):
                try:
                    if os.stat(local_path(url)).st_size != size:
                        return None
                except FileNotFoundError:
                    return None
        return entry

    def _cut(self, stream: Iterator[Sample]) -> Iterator[Sample]:
        """The samples of one shard; what they are goes into the digest."""
        count = size = 0
        while (sample := self._next) is not None:
            coming = sum(len(value) for name, value in sample.items() if name != "__key__")
            if self._output.is_full(count, size, coming):
                return
            count, size = count + 1, size + coming
            self._digest.update(f"{sample['__key__']}\0{coming}\n".encode("utf-8", "surrogateescape"))
            yield sample
            self._next = next(stream, None)
