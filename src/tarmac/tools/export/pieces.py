"""Which samples go into which file, and which columns they have."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tarmac.samples.grouping import Sample
from tarmac.tools.export.form import payload
from tarmac.tools.output import Output
from tarmac.tools.plan import IndexedSamples, OutputShard, SampleSource, StreamedShards
from tarmac.tools.select import Select
from tarmac.tools.tally import Tally

__all__ = ["columns_of", "EVERYTHING", "look_at", "Once", "Target", "Whole"]

EVERYTHING = OutputShard("-", 0, 0)
LOOKED_AT = 1000
"""Samples of a stream that tell which columns there are, at most, ..."""
BYTES_LOOKED_AT = 64 << 20
"""... and about how many bytes of them."""


@dataclass(frozen=True)
class Target(Output):
    """Where the files go. A pattern with `{i}` and no size makes a file for each shard."""

    suffix: str = ""

    @property
    def cut(self) -> bool:
        """Whether files have a size of their own."""
        return self.max_samples is not None or self.max_bytes is not None

    @property
    def by_shard(self) -> bool:
        """Whether each shard that comes in makes a file."""
        return "{name" in self._whole_pattern or (self.numbered and not self.cut)

    @property
    def _whole_pattern(self) -> str:
        return f"{self.pattern}{{name}}{self.suffix}" if self.pattern.endswith("/") else self.pattern


@dataclass(frozen=True)
class Whole:
    """All of several streams, in one piece."""

    streams: StreamedShards

    def pieces(self, output: Output, part: str = "") -> Iterator[OutputShard]:
        """One."""
        yield OutputShard(output.name(0, part=part), 0, 0)

    def samples(self, piece: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        """All samples."""
        del piece
        select = self.streams.select
        return select.cut(select.of_stream(self.streams.shards(), tally), tally)

    def sources(self) -> Sequence[str]:
        """The shards."""
        return self.streams.urls

    def fingerprint(self) -> str:
        """That of the streams."""
        return self.streams.fingerprint()


@dataclass(frozen=True)
class Once:
    """Samples that cannot be read again, in one piece."""

    rest: Iterator[Sample]
    tally: Tally = field(default_factory=Tally)
    """What counts them."""

    def pieces(self, output: Output, part: str = "") -> Iterator[OutputShard]:
        """One."""
        yield OutputShard(output.name(0, part=part), 0, 0)

    def samples(self, piece: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        """All samples, once."""
        del piece
        yield from self.rest
        if tally is not None:
            tally.add(self.tally)

    def sources(self) -> Sequence[str]:
        """Nobody knows them."""
        return ()

    def fingerprint(self) -> str:
        """Nobody knows."""
        return ""


def columns_of(sources_by_split: Iterable[SampleSource], select: Select) -> tuple[str, ...]:
    """The fields that indexed shards have, in the order in which they come."""
    found: dict[str, None] = {}
    for rows in sources_by_split:
        for part in rows.dataset.parts if isinstance(rows, IndexedSamples) else ():
            for sidecar in part.shards.sidecars(part.numbers.tolist()):
                found |= dict.fromkeys(sidecar.fields)
    dropped = frozenset() if select.rule is None else select.rule.dropped
    return tuple(name for name in found if name not in dropped)


def look_at(samples: Iterator[Sample]) -> tuple[Iterator[Sample], tuple[str, ...]]:
    """The first samples of a stream tell which columns there are; all samples come after that."""
    first: list[Sample] = []
    size, found = 0, dict[str, None]()
    for sample in samples:
        first.append(sample)
        found |= dict.fromkeys(name for name in sample if name[:2] != "__")
        size += payload(sample)
        if len(first) == LOOKED_AT or size > BYTES_LOOKED_AT:
            break
    return itertools.chain(first, samples), tuple(found)
