"""Random pipelines, described by data, so that the same pipeline can be built several times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import tarmac
import tarmac.webdataset as wds
from harness.readers import World

MOST = 40
"""The number of items to read in an epoch; some pipelines are endless."""


def key_of(sample):
    return sample["__key__"]


def tagged(item):
    return ("m", item)


def delayed(src):
    """A custom stage, which holds back one item."""
    held = None
    for number, item in enumerate(src):
        if number % 3:
            yield item
        elif held is not None:
            yield held
            held = item
        else:
            held = item


def as_list(rows):
    return rows


@dataclass(frozen=True)
class Pipeline:
    """A source, stages in the workers, perhaps a loader, and stages behind it."""

    source: tuple[Any, ...]
    stages: tuple[tuple[Any, ...], ...]
    length: tuple[str, int] | None = None
    workers: int | None = None
    persistent: bool = False
    behind: tuple[tuple[Any, ...], ...] = ()
    behind_length: tuple[str, int] | None = None

    def make(self, shards: Path) -> Any:
        dataset = _extend(_source(self.source, shards), self.stages, self.length)
        if self.workers is None:
            return dataset
        persistent = self.persistent and self.workers > 0
        loader = tarmac.WebLoader(
            dataset, batch_size=None, num_workers=self.workers, persistent_workers=persistent
        )
        return _extend(loader, self.behind, self.behind_length)


def _source(source: tuple[Any, ...], shards: Path) -> Any:
    kind, *details = source
    if kind == "web":
        sizes, shuffle, seed = details
        return tarmac.WebDataset(World(sizes).urls(shards), shardshuffle=shuffle, seed=seed).map(key_of)
    if kind == "resampled":
        sizes, seed = details
        return tarmac.WebDataset(World(sizes).urls(shards), resampled=True, seed=seed).map(key_of)
    if kind == "list":
        (count,) = details
        return wds.FluidWrapper(range(count))
    first, second, longest = details
    datasets = [_source(first, shards), _source(second, shards)]
    if kind == "mix":
        return wds.FluidWrapper(wds.RandomMix(datasets, [0.7, 0.3], longest=longest, seed=5))
    return wds.FluidWrapper(wds.RoundRobin(datasets, longest=longest))


def _extend(dataset: Any, stages: tuple[tuple[Any, ...], ...], length: tuple[str, int] | None) -> Any:
    for name, *details in stages:
        if name == "map":
            dataset = dataset.map(tagged, threads=details[0])
        elif name == "batches":
            dataset = dataset.batched(details[0], as_list, partial=details[1])
        elif name == "custom":
            dataset = dataset.pipe(delayed)
        elif name == "unlisted":
            dataset = dataset.listed(details[0]).unlisted()
        else:
            dataset = getattr(dataset, name)(*details)
    if length is not None:
        dataset = getattr(dataset, length[0])(length[1])
    return dataset


SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 3)
WEBS = st.tuples(st.just("web"), SIZES, st.sampled_from([None, 2, True]), st.sampled_from([None, 3]))
LISTS = st.tuples(st.just("list"), st.integers(4, 20))
RESAMPLED = st.tuples(st.just("resampled"), SIZES, st.sampled_from([None, 3]))
SOURCES = st.one_of(
    WEBS,
    LISTS,
    RESAMPLED,
    st.tuples(st.sampled_from(["mix", "round robin"]), WEBS, st.one_of(WEBS, RESAMPLED), st.booleans()),
)
STAGES = st.lists(
    st.one_of(
        st.tuples(st.just("map"), st.sampled_from([0, 1, 2])),
        st.tuples(st.just("shuffle"), st.integers(1, 6)),
        st.tuples(st.just("slice"), st.integers(3, 20)),
        st.tuples(st.just("batches"), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("unlisted"), st.integers(1, 4)),
        st.tuples(st.just("rsample"), st.just(0.6)),
        st.tuples(st.just("mcached")),
        st.tuples(st.just("custom")),
    ),
    max_size=4,
).map(tuple)
LENGTHS = st.one_of(
    st.none(),
    st.tuples(st.just("with_epoch"), st.integers(1, 15)),
    st.tuples(st.just("repeat"), st.integers(1, 3)),
)


def pipelines(workers: st.SearchStrategy[int | None]) -> st.SearchStrategy[Pipeline]:
    return st.builds(Pipeline, SOURCES, STAGES, LENGTHS, workers, st.booleans(), STAGES, LENGTHS)
