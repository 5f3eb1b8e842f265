"""The columns of exported tables: from indexes, or from the first samples of a stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tarmac.samples.grouping import Sample
from tarmac.tools.export.formats import payload
from tarmac.tools.output import Output, fields_of
from tarmac.tools.plan import IndexedSamples, OnePass, OutputShard, Plan, StreamedShards
from tarmac.tools.select import Select
from tarmac.tools.tally import Tally

MAX_SAMPLES = 1000
"""Samples of a stream that determine its columns."""
MAX_BYTES = 64 << 20
"""Their approximate size in bytes."""


@dataclass(frozen=True, kw_only=True)
class _ReadOnce(OnePass):
    """Samples that cannot be read again, of which some were read to determine the columns."""

    rest: Iterator[Sample]
    tally: Tally
    """Counts the samples."""

    def shards(self, output: Output, split: str = "") -> Iterator[OutputShard]:
        yield self.everything

    def samples(self, shard: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        yield from self.rest
        if tally is not None:
            tally.add(self.tally)


def find_columns(planned: Plan, select: Select, *, once: bool) -> tuple[str, ...]:
    """Return the columns of a table; with `once`, the plan keeps the samples that were read for that."""
    names: dict[str, None] = {}
    (source, *_) = planned.sources.values()
    if not isinstance(source, StreamedShards):
        for each in planned.sources.values():
            for part in each.dataset._parts if isinstance(each, IndexedSamples) else ():
                for sidecar in part.shards.sidecars(part.numbers.tolist()):
                    names |= dict.fromkeys(sidecar.fields)
        dropped = frozenset() if select.rule is None else select.rule.dropped
        return tuple(name for name in names if name not in dropped)
    tally, first, size = Tally(), list[Sample](), 0
    samples = OnePass(source.inputs, source.select, source.access).samples(OutputShard(""), tally)
    for sample in samples:
        first.append(sample)
        names |= dict.fromkeys(fields_of(sample))
        size += payload(sample)
        if len(first) == MAX_SAMPLES or size > MAX_BYTES:
            break
    if once:
        rest = itertools.chain(first, samples)
        stream = _ReadOnce(source.inputs, source.select, source.access, rest=rest, tally=tally)
        planned.sources = {"": stream}
    return tuple(names)
