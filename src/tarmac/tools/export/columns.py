"""The columns of exported tables: from indexes, or from the first samples of a stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tarmac.samples.grouping import Sample
from tarmac.tools.export.formats import payload
from tarmac.tools.output import Output
from tarmac.tools.plan import IndexedSamples, OutputShard, SampleSource
from tarmac.tools.select import Select
from tarmac.tools.tally import Tally

MAX_SAMPLES = 1000
"""Samples of a stream that determine its columns."""
MAX_BYTES = 64 << 20
"""Approximate bytes of them."""


@dataclass(frozen=True)
class ReadOnce:
    """Samples that cannot be read again."""

    rest: Iterator[Sample]
    tally: Tally = field(default_factory=Tally)
    """What counts them."""
    everything = OutputShard("")

    def shards(self, output: Output, split: str = "") -> Iterator[OutputShard]:
        yield self.everything

    def samples(self, shard: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        yield from self.rest
        if tally is not None:
            tally.add(self.tally)

    def urls(self) -> Sequence[str]:
        return ()

    def fingerprint(self) -> str:
        return ""


def indexed_columns(sources: Iterable[SampleSource], select: Select) -> tuple[str, ...]:
    """Return the selected fields of indexed shards, in the order of their first occurrence."""
    names: dict[str, None] = {}
    for source in sources:
        for part in source.dataset._parts if isinstance(source, IndexedSamples) else ():
            for sidecar in part.shards.sidecars(part.numbers.tolist()):
                names |= dict.fromkeys(sidecar.fields)
    dropped = frozenset() if select.rule is None else select.rule.dropped
    return tuple(name for name in names if name not in dropped)


def first_columns(samples: Iterator[Sample]) -> tuple[Iterator[Sample], tuple[str, ...]]:
    """Return all samples of a stream, and the fields of the first ones."""
    first: list[Sample] = []
    size, names = 0, dict[str, None]()
    for sample in samples:
        first.append(sample)
        names |= dict.fromkeys(name for name in sample if name[:2] != "__")
        size += payload(sample)
        if len(first) == MAX_SAMPLES or size > MAX_BYTES:
            break
    return itertools.chain(first, samples), tuple(names)
