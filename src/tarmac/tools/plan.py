"""Samples in an order, cut into the pieces that shards are made of.

Shards that can be indexed are arranged by number, so that every piece can be made by itself, anywhere and
again. Streams can only be gone through; of those each is a piece.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.errors import UrlError
from tarmac.exact.dataset import Dataset
from tarmac.exact.selection import whole
from tarmac.exact.shardset import Opening, ShardSet
from tarmac.indexing.auto import manifest_of
from tarmac.samples.grouping import Sample
from tarmac.samples.reader import SampleReader, read_shard
from tarmac.storage import Cache, StorageOptions, is_local, scheme_of, stat
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar.compression import format_of_name
from tarmac.tools.output import Output, several_shards
from tarmac.tools.permutations import Order, order_text
from tarmac.tools.select import Select
from tarmac.tools.tally import Balance, Tally

__all__ = [
    "open_indexed",
    "SampleSource",
    "balance",
    "can_index",
    "check_one_to_one",
    "any_remote",
    "selects_by_split",
    "OutputShard",
    "IndexedSamples",
    "one_to_one",
    "shard_stem",
    "StreamedShards",
]

Integers = NDArray[np.int64]
AT_ONCE = 1024
"""Samples that are fetched together, of a run of neighbours or from anywhere, ..."""
BYTES_AT_ONCE = 32 << 20
"""... and about how many bytes of them."""
SIZES_AT_ONCE = 1 << 20
"""Samples whose sizes are asked for together, to find where to cut."""


@dataclass(frozen=True, slots=True)
class OutputShard:
    """What one shard is made of: the samples from `start` up to `stop` of an arrangement."""

    name: str
    start: int
    stop: int
    source: int = 0
    """The number of the shard it comes from, where it comes from one."""


class SampleSource(Protocol):
    """Samples that can be cut into pieces."""

    def pieces(self, output: Output, part: str = "") -> Iterator[OutputShard]:
        """The shards to make."""

    def samples(self, piece: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        """The samples of a piece, each with the fields it is to have."""

    def sources(self) -> Sequence[str]:
        """The shards that they come from."""

    def fingerprint(self) -> str:
        """What changes when the samples or their order do."""


@dataclass(frozen=True)
class IndexedSamples:
    """Indexed samples, in an order, or as they are."""

    dataset: Dataset
    select: Select
    order: Order | None = None
    at_once: int = AT_ONCE
    whole: Dataset | None = None
    """All samples, of which those of the dataset were chosen."""

    @property
    def size(self) -> int:
        """How many samples there are."""
        return len(self.dataset) if self.order is None else self.order.size

    def pieces(self, output: Output, part: str = "") -> Iterator[OutputShard]:
        """Cut at shard boundaries, or at so many samples or bytes."""
        if output.by_shard:
            if self.order is not None:
                raise UrlError("samples in another order have no shard of the old name; use {i:06d}.")
            yield from self._by_shard(output, part)
            return
        edges = self._edges(output)
        if len(edges) > 2 and not output.numbered:
            raise several_shards(output.pattern)
        for number, (start, stop) in enumerate(itertools.pairwise(edges)):
            yield OutputShard(output.name(number, part=part), start, stop)

    def _by_shard(self, output: Output, part: str) -> Iterator[OutputShard]:
        ends = np.cumsum(self.dataset.lengths).tolist()
        for number, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
            home, shard = self.dataset.shard_of(number)
            yield OutputShard(
                output.name(number, shard_stem(home.shards.url(shard)), part), start, stop, number
            )

    def _edges(self, output: Output) -> list[int]:
        """Where one shard ends and the next begins."""
        total = self.size
        if output.max_bytes is None:
            return [*range(0, total, output.max_samples or max(total, 1)), total]
        edges, count, size = [0], 0, 0
        for start in range(0, total, SIZES_AT_ONCE):
            indices = self.indices(start, min(start + SIZES_AT_ONCE, total))
            for place, bytes_here in enumerate(self.sizes(indices).tolist(), start):
                if output.is_full(count, size, bytes_here):
                    edges.append(place)
                    count = size = 0
                count, size = count + 1, size + bytes_here
        return [*edges, total] if total else [0, 0]

    def indices(self, start: int, stop: int) -> Integers:
        """The numbers of the samples at these places."""
        return np.arange(start, stop) if self.order is None else self.order.at(start, stop)

    def samples(self, piece: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        """The samples of a piece, fetched some at a time."""
        return self.select.cut(self._counted(piece, tally), tally)

    def _counted(self, piece: OutputShard, tally: Tally | None) -> Iterator[Sample]:
        samples = self._fetched(piece)
        return samples if tally is None else tally.choose(tally.see(samples))

    def _fetched(self, piece: OutputShard) -> Iterator[Sample]:
        start = piece.start
        while start < piece.stop:
            indices = self.indices(start, min(start + self.at_once, piece.stop))
            sizes = np.cumsum(self.sizes(indices))
            fitting = max(int(np.searchsorted(sizes, BYTES_AT_ONCE, side="right")), 1)
            yield from self.fetch(indices[:fitting])
            start += min(fitting, len(indices))

    def sizes(self, indices: Integers) -> Integers:
        """How many bytes each of these samples has."""
        return self.dataset.sizes_of(indices)

    def fetch(self, indices: Integers) -> list[Sample]:
        """These samples, whole."""
        return self.dataset.batch(indices)

    def sources(self) -> list[str]:
        """The shards that the samples come from."""
        sets = {id(part.shards): part.shards for part in self.dataset.parts}.values()
        return [shard.url for shards in sets for shard in shards.manifest.shards]

    def fingerprint(self) -> str:
        """A hash of which samples there are and in which order."""
        # Changed bytes in the same places do not change an index; those of a store have new versions.
        near = list(filter(is_local, self.sources()))
        facts = f"{self.dataset.fingerprint} {order_text(self.order)} {_versions(near, DEFAULT_STORAGE)}"
        return xxhash.xxh3_64_hexdigest(facts.encode())


@dataclass(frozen=True)
class StreamedShards:
    """Shards that are read from front to back, each by itself."""

    urls: Sequence[str]
    select: Select
    storage: StorageOptions = DEFAULT_STORAGE
    cache: Cache | None = None

    def pieces(self, output: Output, part: str = "") -> Iterator[OutputShard]:
        """A shard for each shard."""
        for number, url in enumerate(self.urls):
            yield OutputShard(output.name(number, shard_stem(url), part), 0, 0, number)

    def samples(self, piece: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        """The samples of one shard."""
        return self.select.cut(self.select.of_stream([self._shard(self.urls[piece.source])], tally), tally)

    def shards(self) -> Iterator[Iterator[Sample]]:
        """All samples of each shard."""
        return map(self._shard, self.urls)

    def _shard(self, url: str) -> Iterator[Sample]:
        return read_shard(SampleReader([url], storage=self.storage, cache=self.cache), url)

    def sources(self) -> Sequence[str]:
        """The shards."""
        return self.urls

    def fingerprint(self) -> str:
        """A hash of what the shards are, as far as their stores say."""
        return _versions(self.urls, self.storage)


def _versions(urls: Sequence[str], storage: StorageOptions) -> str:
    """A hash of what stores say about shards; a stream says nothing about itself."""
    digest = xxhash.xxh3_64()
    for url in urls:
        info = None if scheme_of(url) in ("-", "pipe") else stat(url, storage)
        digest.update(f"{url} {info}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def shard_stem(url: str) -> str:
    """The name of a shard without its directory and without `.tar` and what follows."""
    name = PurePosixPath(url.partition("?")[0] if not is_local(url) else url).name
    match = re.match(r"(?is)(.*)\.tar", name)
    return match[1] if match else name


def selects_by_split(select: Select, output: Output) -> dict[str, Select]:
    """What to select for each part that is written, by name; one without a name where there are none."""
    named = "{part" in output.pattern
    wanted = [select.only] * named if select.only else list(select.shares)
    if bool(wanted) != named:
        raise UrlError(
            "--part needs {part} in the name of the output, and the other way round.",
            url=output.pattern,
            hint="-o '{part}-{i:06d}.tar', or --only NAME for one of the parts.",
        )
    return {name: replace(select, only=name) for name in wanted} or {"": select}


def one_to_one(output: Output, select: Select) -> bool:
    """Whether every shard makes one of its own, by itself, so that remote ones need be read only once."""
    return output.by_shard and not select.slice and (bool(select.only) or not select.shares)


def check_one_to_one(urls: Sequence[str], output: Output) -> None:
    """Refuse streams of which each cannot make one of its own."""
    if any(scheme_of(url) == "-" for url in urls):
        raise UrlError("standard input has no name to keep.", hint="-o x.tar or 'x-{i:06d}.tar'.")
    if len(urls) > 1 and output.renumbers:
        raise UrlError(
            "--rekey: how many samples come before a shard is not known, so numbers would come twice.",
            hint="{key} in it, or -o 'x-{i:06d}.tar'.",
        )


def any_remote(urls: Sequence[str]) -> bool:
    """Whether some of these are not on this machine."""
    return not all(map(is_local, urls))


def can_index(urls: Sequence[str]) -> bool:
    """Whether every shard has addresses: none is a stream, a command or compressed."""
    return not any(scheme_of(url) in ("-", "pipe") or format_of_name(_path(url)) for url in urls)


def _path(url: str) -> str:
    return url if is_local(url) else url.partition("?")[0]


def open_indexed(
    urls: Sequence[str],
    select: Select,
    *,
    storage: StorageOptions = DEFAULT_STORAGE,
    cache: Cache | None = None,
    views: bool = False,
    show: bool | None = None,
) -> IndexedSamples:
    """Index shards that have no index, and choose samples; `views` for fields that are only passed on."""
    source = urls[0] if len(urls) == 1 and os.fspath(urls[0]).lower().endswith(".json") else urls
    manifest = manifest_of(source, storage, meta=select.meta, beside=False, show=show)
    opening = Opening(cache=cache, storage=storage, views=views)
    everything = Dataset.of_parts([whole(ShardSet(manifest, opening))])
    return IndexedSamples(select.of_dataset(everything), select, whole=everything)


def balance(select: Select, rows: Sequence[IndexedSamples]) -> Balance:
    """What was left out of all samples by the arrangements of all parts; it is an error if that is all."""
    everything = rows[0].whole
    assert everything is not None
    found = select.balance(everything, sum(each.size for each in rows))
    empty = [each.select.only for each in rows if not each.size and len(everything)]
    return replace(found, remarks=[*found.remarks, *(f"the part {name} has no samples" for name in empty)])
