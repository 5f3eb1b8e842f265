"""Plan which samples go into which output shard: the step between the arguments of a verb and its job.

Inputs that can be indexed are addressed by sample number, so every output shard can be made by itself,
anywhere and again. Standard input, commands and compressed shards can only be read from start to end: each
becomes one output shard, or all of them are read in one pass by this process.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Protocol

import numpy as np
import xxhash

from tarmac.errors import TarmacError, UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.selection import whole
from tarmac.exact.shardset import ShardSet
from tarmac.indexing.build import manifest_of, usable_index
from tarmac.indexing.manifest import Inputs, Shard
from tarmac.indexing.meta import MetaPlan
from tarmac.indexing.sidecar import sidecar_url
from tarmac.jobs.report import Report
from tarmac.jobs.statuses import statuses_of
from tarmac.jobs.task import Status
from tarmac.runtime.types import Integers
from tarmac.samples.grouping import Sample
from tarmac.samples.reader import read_shard
from tarmac.storage import StorageOptions, is_local, is_stream, scheme_of, stat, without_query
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar.compression import format_of_name
from tarmac.tools.options import Access
from tarmac.tools.order import AS_IS, Order, Permutation, permutation_text
from tarmac.tools.output import Output, check_splits, same_name
from tarmac.tools.reading import Unpacked, check_indexes, shard_statuses, shards_between
from tarmac.tools.select import Select, offered_names
from tarmac.tools.tally import Balance, Tally

BATCH = 1024
"""Samples that are fetched together, ..."""
BATCH_BYTES = 32 << 20
"""... and about how many bytes of them."""
SIZES_BATCH = 1 << 20
"""Samples whose sizes are looked up together, to find where shards end."""


_EXAMINED = 20
"""Samples that are read to complete short names in conditions."""


@dataclass(frozen=True, slots=True)
class OutputShard:
    """One output shard: the samples from `start` to `stop` of a sample source."""

    name: str
    start: int = 0
    stop: int = 0
    source: int = 0
    """The number of the input shard, if it is made from one."""


class SampleSource(Protocol):
    """Samples that can be divided into output shards."""

    def shards(self, output: Output, split: str = "") -> Iterator[OutputShard]:
        """Yield the shards to write."""

    def samples(self, shard: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        """Yield the samples of a shard, with the selected fields."""

    def urls(self) -> Sequence[str]:
        """Return the input shards."""

    def fingerprint(self) -> str:
        """Return a hash of names and sizes of the samples and of their order, equal for all copies of the inputs."""

    def earlier_fingerprint(self) -> str:
        """Return the hash that earlier versions recorded, which also changes with the times of the inputs."""

    def statuses(self, shard: OutputShard) -> Mapping[str, Status]:
        """Return the current status of each input that a shard is read from."""

    def all_statuses(self) -> Mapping[str, Status]:
        """Return the current status of all inputs."""

    def check(self, shard: OutputShard) -> None:
        """Raise if the inputs of a shard are not what their indexes say."""


@dataclass(frozen=True)
class IndexedSamples:
    """Indexed samples, permuted or in their original order."""

    dataset: Dataset
    select: Select
    permutation: Permutation | None = None
    batch: int = BATCH
    versions: str | None = None
    """A hash that changes with the bytes of the shards, if it is known already, as earlier versions recorded it."""
    unpacked: Unpacked = field(default_factory=dict)
    """Shards that were unpacked for this run."""

    @property
    def size(self) -> int:
        """Return the number of samples."""
        return len(self.dataset) if self.permutation is None else self.permutation.size

    @property
    def everything(self) -> OutputShard:
        """Return one shard of all samples."""
        return OutputShard("", 0, self.size)

    def shards(self, output: Output, split: str = "") -> Iterator[OutputShard]:
        """Divide the samples as the input shards are, or by number of samples and bytes."""
        if output.by_shard:
            if self.permutation is not None:
                raise UsageError(
                    "reordered samples cannot keep the names of their shards.",
                    url=output.pattern,
                    hint="{i:06d} in the output.",
                )
            yield from self._by_shard(output, split)
            return
        edges = self._edges(output)
        if len(edges) > 2 and not output.numbered:
            raise same_name(output.pattern)
        for number, (start, stop) in enumerate(itertools.pairwise(edges)):
            yield OutputShard(output.name(number, split=split), start, stop)

    def _by_shard(self, output: Output, split: str) -> Iterator[OutputShard]:
        ends = np.cumsum(self.dataset.lengths).tolist()
        for number, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
            home, shard = self.dataset._fetcher.shard(number)
            name = output.name(number, shard_stem(home.shards.url(shard)), split)
            yield OutputShard(name, start, stop, number)

    def _edges(self, output: Output) -> list[int]:
        """Return where shards begin and end."""
        total = self.size
        if output.max_bytes is None:
            return [*range(0, total, output.max_samples or max(total, 1)), total]
        edges, count, size = [0], 0, 0
        for start in range(0, total, SIZES_BATCH):
            indices = self.indices(start, min(start + SIZES_BATCH, total))
            for position, sample_bytes in enumerate(self.sizes(indices).tolist(), start):
                if output.is_full(count, size, sample_bytes):
                    edges.append(position)
                    count = size = 0
                count, size = count + 1, size + sample_bytes
        return [*edges, total] if total else [0, 0]

    def indices(self, start: int, stop: int) -> Integers:
        """Return the sample numbers at these positions."""
        return np.arange(start, stop) if self.permutation is None else self.permutation.at(start, stop)

    def samples(self, shard: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        return self.select.cut(self._counted(shard, tally), tally)

    def _counted(self, shard: OutputShard, tally: Tally | None) -> Iterator[Sample]:
        samples = self._fetched(shard)
        return samples if tally is None else tally.see_selected(samples)

    def batches(self, shard: OutputShard, size: int, tally: Tally) -> Iterator[list[Sample]]:
        """Yield the samples of a shard, `size` at a time, and count each batch before it is yielded."""
        if self.select.rule is not None:
            samples = self.samples(shard, tally)
            while batch := list(itertools.islice(samples, size)):
                yield batch
            return
        start = shard.start
        while start < shard.stop:
            batch = list(self._fetched(replace(shard, start=start, stop=min(start + size, shard.stop))))
            tally.seen, tally.selected = tally.seen + len(batch), tally.selected + len(batch)
            tally.complete += len(batch)
            yield batch
            start += len(batch)

    def _fetched(self, shard: OutputShard) -> Iterator[Sample]:
        start = shard.start
        while start < shard.stop:
            indices = self.indices(start, min(start + self.batch, shard.stop))
            sizes = np.cumsum(self.sizes(indices))
            count = max(int(np.searchsorted(sizes, BATCH_BYTES, side="right")), 1)
            yield from self.fetch(indices[:count])
            start += min(count, len(indices))

    def sizes(self, indices: Integers) -> Integers:
        """Return the number of bytes of each of these samples."""
        return self.dataset.sizes(indices)

    def fetch(self, indices: Integers) -> list[Sample]:
        """Return these samples with all their fields."""
        return self.dataset.batch(indices)

    def urls(self) -> list[str]:
        sets = {id(part.shards): part.shards for part in self.dataset._parts}.values()
        return [shard.url for shards in sets for shard in shards.manifest.shards]

    def inputs_of(self, shard: OutputShard) -> list[tuple[ShardSet, int]]:
        """Return the input shards of an output shard; a permutation may take its samples from all of them."""
        permuted = self.permutation is not None
        start, stop = (0, len(self.dataset)) if permuted else (shard.start, shard.stop)
        return shards_between(self.dataset, start, stop)

    def statuses(self, shard: OutputShard) -> Mapping[str, Status]:
        return shard_statuses(self.inputs_of(shard), self.unpacked)

    def all_statuses(self) -> Mapping[str, Status]:
        return shard_statuses(shards_between(self.dataset, 0, len(self.dataset)), self.unpacked)

    def check(self, shard: OutputShard) -> None:
        check_indexes(self.inputs_of(shard), self.unpacked)

    def fingerprint(self) -> str:
        facts = f"{self.dataset.fingerprint} {permutation_text(self.permutation)}"
        return xxhash.xxh3_64_hexdigest(facts.encode())

    def earlier_fingerprint(self) -> str:
        versions = self.versions
        if versions is None:
            # Changed bytes at the same offsets do not change an index; objects in stores have new versions.
            versions = _versions(list(filter(is_local, self.urls())), DEFAULT_STORAGE)
        facts = f"{self.dataset.fingerprint} {permutation_text(self.permutation)} {versions}"
        return xxhash.xxh3_64_hexdigest(facts.encode())


@dataclass(frozen=True)
class StreamedShards:
    """Shards that are read from start to end, each becoming one output shard."""

    inputs: Sequence[str]
    select: Select
    access: Access = field(default_factory=Access)
    order: Order = AS_IS

    def shards(self, output: Output, split: str = "") -> Iterator[OutputShard]:
        for number, url in enumerate(self.inputs):
            yield OutputShard(output.name(number, shard_stem(url), split), source=number)

    def samples(self, shard: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        return self._selected([self.inputs[shard.source]], tally or Tally())

    def _selected(self, urls: Sequence[str], tally: Tally) -> Iterator[Sample]:
        select, reader = self.select, self.access.reader(urls)
        shards = (read_shard(reader, url, opening=opening) for url, opening in reader.open_each(urls))
        each = select.of_each(shards, tally)
        # Selected before interleaving, as with an index; a slice, which counts all samples, is rejected with it.
        return select.cut(self.order.of_streams(each, lambda samples: select.of_all(samples, tally)), tally)

    def urls(self) -> Sequence[str]:
        return self.inputs

    def statuses(self, shard: OutputShard) -> Mapping[str, Status]:
        return statuses_of([self.inputs[shard.source]], self.access.storage)

    def all_statuses(self) -> Mapping[str, Status]:
        return statuses_of(self.inputs, self.access.storage)

    def check(self, shard: OutputShard) -> None:
        """Do nothing: reading the samples also reads their headers."""

    def fingerprint(self) -> str:
        # Names decide about the names of outputs; of the content nothing is known before it is read.
        names = "\n".join(map(shard_stem, self.inputs))
        return xxhash.xxh3_64_hexdigest(names.encode("utf-8", "surrogateescape"))

    def earlier_fingerprint(self) -> str:
        return _versions(self.inputs, self.access.storage)


@dataclass(frozen=True)
class OnePass(StreamedShards):
    """Streamed shards as one sequence of samples, which this process reads once."""

    everything = OutputShard("")

    def samples(self, shard: OutputShard, tally: Tally | None = None) -> Iterator[Sample]:
        return self._selected(self.inputs, tally or Tally())

    def statuses(self, shard: OutputShard) -> Mapping[str, Status]:
        return statuses_of(self.inputs, self.access.storage)


@dataclass
class Plan:
    """Where the samples of a job come from."""

    sources: dict[str, SampleSource]
    """The samples of each split; one without a name if nothing is split."""
    one_pass: bool = False
    """Whether this process reads the samples once, in order, and writes them in input order."""
    select: Select | None = None
    """The selection, where its result is known only after reading."""
    balance: Balance = field(default_factory=Balance)

    def add_to(self, report: Report) -> None:
        """Add what the selection left out to the report of a finished job, and remarks on it."""
        self.balance.add_to(report)
        if self.select is not None:
            report.remarks += self.select.remarks(Tally.of_report(report))


def plan(
    inputs: Sequence[Inputs],
    select: Select,
    output: Output,
    access: Access,
    *,
    order: Order = AS_IS,
    views: bool = False,
    reads: Collection[str] | None = None,
    stream_remote: bool | None = None,
    progress: bool | None = None,
    processes: int = 1,
) -> Plan:
    """Decide how the samples are read: by index, shard by shard, or in one pass.

    Remote shards that each become one output shard are streamed: reading them twice, to index them first,
    would cost more. `stream_remote` overrides that. `views` lends memory-mapped fields to a caller that only
    passes them on. `reads` names the fields that are read from indexed shards, by default all. `processes` build the
    indexes that are missing.
    """
    urls = [url for group in inputs for url in group.urls]
    one_to_one = (
        order.as_is and output.by_shard and not select.slice and (bool(select.only) or not select.shares)
    )
    stream_remote = one_to_one if stream_remote is None else stream_remote
    if not can_index(urls) or (any_remote(urls) and stream_remote and not output.renumbers):
        select = with_indexed_names(inputs[0], select, access)
        if one_to_one:
            _check_one_to_one(urls, output)
            return Plan({"": StreamedShards(urls, select, access)}, select=select)
        _check_one_pass(select, output, order)
        return Plan({"": OnePass(urls, select, access, order)}, one_pass=True, select=select)
    selects = selects_by_split(select, output)
    datasets = _open_datasets(
        inputs, select, access, views=views, reads=reads, progress=progress, processes=processes
    )
    sources = {name: _indexed(datasets, each, order) for name, each in selects.items()}
    balance = select.balance(_joined(datasets), sum(source.size for source in sources.values()))
    if any(map(len, datasets)):
        empty = [source.select.only for source in sources.values() if not source.size]
        balance.remarks += [f"the split {name} has no samples" for name in empty]
    return Plan(dict(sources), one_pass=output.stream, balance=balance)


def _check_one_to_one(urls: Sequence[str], output: Output) -> None:
    if any(scheme_of(url) == "-" for url in urls):
        raise UsageError(
            "standard input has no name for {name}.", hint="x.tar or x-{i:06d}.tar as the output."
        )
    if len(urls) > 1 and output.renumbers:
        raise UsageError(
            "numbers would repeat: the samples of streamed shards cannot be counted in advance.",
            field="rekey",
            hint="{key} in the pattern, or x-{i:06d}.tar as the output.",
        )


def _check_one_pass(select: Select, output: Output, order: Order) -> None:
    if (
        output.by_shard
        or (select.shares and not select.only)
        or order.weights
        or (order.interleave and select.slice)
    ):
        raise UsageError(
            "standard input, commands and compressed shards can be read only once, from start to end.",
            hint="plain shards; or x-{i:06d}.tar as the output, and `only` for one split.",
        )


def selects_by_split(select: Select, output: Output) -> dict[str, Select]:
    """Return the selection of each split to write, by name; one without a name if nothing is split."""
    check_splits(output.pattern, select.shares, select.only)
    names = ([select.only] if "{split" in output.pattern else []) if select.only else list(select.shares)
    return {name: replace(select, only=name) for name in names} or {"": select}


def open_indexed(
    inputs: Inputs, select: Select, access: Access, progress: bool | None = None
) -> IndexedSamples:
    """Open shards by their indexes, which are built if necessary, and select samples."""
    return _indexed(_open_datasets([inputs], select, access, progress=progress), select, AS_IS)


def _open_datasets(
    inputs: Sequence[Inputs],
    select: Select,
    access: Access,
    *,
    views: bool = False,
    reads: Collection[str] | None = None,
    progress: bool | None = None,
    processes: int = 1,
) -> list[Dataset]:
    fields = None if reads is None else frozenset(reads)
    opening, datasets = access.opening(views=views, fields=fields), []
    for group in inputs:
        indexing = replace(access.indexing, meta=columns_for(group, select, access))
        manifest = manifest_of(group, indexing, beside=False, progress=progress, processes=processes)
        datasets.append(Dataset._of_parts([whole(ShardSet(manifest, opening))]))
    return datasets


def columns_for(inputs: Inputs, select: Select, access: Access) -> MetaPlan | None:
    """Return the columns that the indexes of inputs need for the condition of a selection."""
    if inputs.manifest is not None and can_index(inputs.urls):  # has its indexes
        return None

    def names() -> list[str]:
        offered: list[str] = []
        with contextlib.suppress(TarmacError):  # of what is read now; the verb itself decides about damage
            for sample in itertools.islice(access.reader(inputs.urls), _EXAMINED):
                offered += offered_names([sample])
        return list(dict.fromkeys(offered))

    return with_indexed_names(inputs, select, access).meta(names)


def with_indexed_names(inputs: Inputs, select: Select, access: Access) -> Select:
    """Return a selection whose short names are completed as those of a dataset, if there is an index."""
    first = inputs.shards[0]
    url = first.url if isinstance(first, Shard) else first
    if select.condition is None or not select.condition.short_names or not can_index([url]):
        return select
    index = first.index if isinstance(first, Shard) else None
    sidecar = usable_index(url, index or sidecar_url(url), access.indexing)
    return select if sidecar is None else replace(select, indexed_names=tuple(sidecar.metadata))


def _indexed(datasets: Sequence[Dataset], select: Select, order: Order) -> IndexedSamples:
    selected = [select.of_dataset(each) for each in datasets]
    return IndexedSamples(_joined(selected), select, order.of(selected))


def _joined(datasets: Sequence[Dataset]) -> Dataset:
    return Dataset._of_parts([part for dataset in datasets for part in dataset._parts])


def _versions(urls: Sequence[str], storage: StorageOptions) -> str:
    """Return a hash of the sizes and versions that stores report; streams have none."""
    digest = xxhash.xxh3_64()
    for url in urls:
        info = None if is_stream(url) else stat(url, storage)
        digest.update(f"{url} {info}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def shard_stem(url: str) -> str:
    """Return the name of a shard without directory, `.tar` and further extensions."""
    name = PurePosixPath(without_query(url)).name
    match = re.match(r"(?is)(.*)\.tar", name)
    return match[1] if match else name


def any_remote(urls: Sequence[str]) -> bool:
    """Return whether some of the shards are not on this machine."""
    return not all(map(is_local, urls))


def can_index(urls: Sequence[str]) -> bool:
    """Return whether every shard can be indexed: it is neither a stream, nor a command, nor compressed."""
    return not any(is_stream(url) or format_of_name(without_query(url)) for url in urls)
