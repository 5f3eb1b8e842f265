"""Find out which input shards an output is read from, and read them again when they may have changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from tarmac.errors import BadCondition, IndexStale, RepeatedSample, SplitSample
from tarmac.exact.dataset import Dataset
from tarmac.exact.shardset import ShardSet
from tarmac.indexing.build import IndexOptions, index_shard, with_existing_columns
from tarmac.indexing.sidecar import read_sidecar, sidecar_url
from tarmac.jobs.statuses import status_fingerprint, statuses_of
from tarmac.jobs.task import Status, Task, Unit
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import plain_key
from tarmac.tools.content import Content
from tarmac.tools.regroup import index_scattered

Unpacked = Mapping[str, tuple[str, Status]]
"""The original URL and the status of shards that were unpacked for this run, by the paths of their copies."""


def shards_between(dataset: Dataset, start: int, stop: int) -> list[tuple[ShardSet, int]]:
    """Return the shards that hold the samples from `start` to `stop`, each with its number in its set."""
    ends = np.cumsum(dataset.lengths)
    first, last = np.searchsorted(ends, [start, stop - 1], side="right") if stop > start else (0, -1)
    homes = map(dataset._fetcher.shard, range(int(first), int(last) + 1))
    return list({(id(home.shards), number): (home.shards, number) for home, number in homes}.values())


def shard_statuses(shards: Sequence[tuple[ShardSet, int]], unpacked: Unpacked) -> dict[str, Status]:
    """Return the current status of these shards, or of what they were unpacked from, by URL."""
    statuses = dict(unpacked[home.url(number)] for home, number in shards if home.url(number) in unpacked)
    for home in {id(home): home for home, _ in shards}.values():
        urls = [home.url(number) for each, number in shards if each is home]
        statuses |= statuses_of((url for url in urls if url not in unpacked), home.options.storage)
    return statuses


def check_indexes(shards: Sequence[tuple[ShardSet, int]], unpacked: Unpacked) -> None:
    """Raise IndexStale if the names or sizes in a shard are not those of its index; damage raises, too."""
    for home, number in shards:
        url = home.url(number)
        if url in unpacked:  # indexed by this run
            continue
        facts, options = home.sidecar(number).facts, home.options.indexing
        index = home.manifest.shards[number].index or sidecar_url(url)
        version = status_fingerprint(statuses_of([url], options.storage))
        if _indexed_again(url, index, version, options) != (facts.fingerprint, tuple(facts.columns.items())):
            raise IndexStale("the content of the shard has changed since it was indexed.", url=url)


@lru_cache(maxsize=4096)
def _indexed_again(url: str, index: str, version: str, options: IndexOptions) -> tuple[str, tuple[Any, ...]]:
    """Return the fingerprints of a shard and its columns by what is in it now; `version` keys the cache."""
    del version
    try:
        options = with_existing_columns(options, index)
    except BadCondition:  # columns that were not read from the shard
        return _indexed_again.__wrapped__(url, "", "", options)
    try:
        content = index_shard(url, options)
    except RepeatedSample:
        raise
    except SplitSample:
        content = index_scattered(url, options)
    facts = read_sidecar(content, url).facts
    return facts.fingerprint, tuple(facts.columns.items())


class Rereading(Task):
    """A task whose units are shards of sample sources: their content is the name of a source, and a shard."""

    sources: Mapping[str, Any]
    """The sample sources, by name."""

    def reads(self) -> Mapping[str, Status]:
        return {
            url: status for source in self.sources.values() for url, status in source.all_statuses().items()
        }

    def inputs(self, unit: Unit) -> str:
        return status_fingerprint(self.statuses(unit))

    def statuses(self, unit: Unit) -> Mapping[str, Status]:
        name, shard = unit.content
        statuses: Mapping[str, Status] = self.sources[name].statuses(shard)
        return statuses

    def content(self, unit: Unit) -> str:
        name, shard = unit.content
        self.sources[name].check(shard)
        content = Content()
        for _ in content.over(self.sources[name].samples(shard)):
            pass
        return str(content)


def with_plain_keys(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Normalise the keys of samples."""
    for sample in samples:
        yield sample if sample["__key__"][:2] != "./" else plain(sample)


def plain(sample: Sample) -> Sample:
    """Return a sample with a normalised key."""
    return sample | {"__key__": plain_key(sample["__key__"])}
