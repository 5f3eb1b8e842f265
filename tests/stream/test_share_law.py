"""The readers together read every sample, whatever the shards, seeds, epochs and peeks of each reader."""

from __future__ import annotations

import functools
import os
import random
from collections import Counter
from itertools import chain, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import tarmac
import tarmac.webdataset as wds
from harness import rounds
from harness.readers import WORLDS, World, epochs_of, make_shards, reader
from tarmac.compat.webdataset import tariterators
from tarmac.compat.webdataset.multi import MultiLoader
from tarmac.errors import NoSamples, UsageError

LAW = settings(deadline=None, derandomize=True, max_examples=rounds(150))
TORCH = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    directory = tmp_path_factory.mktemp("shards")
    make_shards(directory)
    return directory


def key_of(sample):
    return sample["__key__"]


def by_hand(src):
    """A custom splitter that reads the environment itself."""
    return islice(src, int(os.environ["RANK"]), None, int(os.environ["WORLD_SIZE"]))


def streams(world, shards, kind, shuffle):
    """Return a function that builds a pipeline of this kind, which splits shards between readers."""
    urls = world.urls(shards)

    def web(rank, **options):
        options = {"nodesplitter": wds.split_by_node, "empty_check": False, **options}
        return tarmac.WebDataset(urls, shardshuffle=shuffle, seed=world.seed(rank), **options).map(key_of)

    def pipeline(rank, *stages):
        splitters = [wds.split_by_node, wds.split_by_worker]
        return tarmac.DataPipeline(*stages, *splitters, wds.tarfile_to_samples(), wds.map(key_of))

    return {
        "web": web,
        "detshuffle": functools.partial(web, detshuffle=True),
        "custom splitter": functools.partial(web, nodesplitter=by_hand),
        "shuffled list": lambda rank: pipeline(rank, wds.SimpleShardList(urls, seed=5)),
        "shuffle": lambda rank: pipeline(rank, wds.SimpleShardList(urls), wds.shuffle(3, seed=5)),
        "shuffle before a custom splitter": lambda rank: tarmac.DataPipeline(
            wds.SimpleShardList(urls, seed=7),
            wds.shuffle(3, seed=5),
            by_hand,
            wds.split_by_worker,
            wds.tarfile_to_samples(),
            wds.map(key_of),
        ),
        "generator": lambda rank: pipeline(
            rank, wds.SimpleShardList(urls), wds.shuffle(3, rng=random.Random(4))
        ),
        "nested": lambda rank: pipeline(
            rank, tarmac.DataPipeline(wds.SimpleShardList(urls), wds.shuffle(4, seed=3))
        ),
        "mixed lists": lambda rank: pipeline(
            rank,
            wds.RandomMix(
                [wds.SimpleShardList(part, seed=2) for part in (urls[::2], urls[1::2]) if part],
                longest=True,
            ),
        ),
        "spec": lambda rank: pipeline(rank, wds.MultiShardSample({"datasets": [{"shards": urls}]}, seed=3)),
    }[kind]


KINDS = st.sampled_from(
    [
        "web",
        "detshuffle",
        "custom splitter",
        "shuffle before a custom splitter",
        "shuffled list",
        "shuffle",
        "generator",
        "nested",
        "mixed lists",
        "spec",
    ]
)
SHUFFLES = st.sampled_from([None, True, 1, 3])


@LAW
@given(WORLDS, KINDS, SHUFFLES)
def test_every_sample_once_in_every_epoch(shards, world, kind, shuffle):
    for epoch in epochs_of(world, streams(world, shards, kind, shuffle)):
        assert sorted(chain(*epoch)) == world.keys


@LAW
@given(WORLDS, KINDS, SHUFFLES)
def test_every_sample_in_epochs_of_a_fixed_length(shards, world, kind, shuffle):
    """In epochs that are long enough for every reader, no sample is missing."""
    make = streams(world, shards, kind, shuffle)

    def with_epoch(rank):
        return make(rank).with_epoch(len(world.keys))

    for epoch in epochs_of(world, with_epoch):
        assert set(chain(*epoch)) == set(world.keys)


@LAW
@given(WORLDS, SHUFFLES, st.sampled_from([1, 2, 3, 10]), st.sampled_from(["pad", "drop"]), st.booleans())
def test_equal_batches_are_equal_and_complete(shards, world, shuffle, size, tail, partial):
    readers = world.ranks * world.workers
    if tail == "drop" and len(world.keys) < readers * size:
        return

    def make(rank):
        web = tarmac.WebDataset(
            world.urls(shards), shardshuffle=shuffle, nodesplitter=wds.split_by_node, seed=world.seed(rank)
        )
        return web.map(key_of).listed(size, partial=partial).with_equal_batches(tail=tail)

    for epoch in epochs_of(world, make):
        assert len({len(batches) for batches in epoch}) == 1
        assert {len(batch) for batches in epoch for batch in batches} == {size}
        counts = Counter(key for batches in epoch for batch in batches for key in batch)
        missing = len(world.keys) - len(counts)
        repeated = counts.total() - len(counts)
        assert (missing, repeated < readers * size) == (0, True) if tail == "pad" else repeated == 0
        assert missing < readers * size


def test_equal_batches_of_five_shards_on_two_ranks(shards):
    world = World([5, 5, 5, 5, 5], ranks=2, epochs=3)

    def make(rank):
        web = tarmac.WebDataset(world.urls(shards), shardshuffle=True, nodesplitter=wds.split_by_node)
        return web.map(key_of).listed(5).with_equal_batches(5)

    for epoch in epochs_of(world, make):
        assert {key for batches in epoch for batch in batches for key in batch} == set(world.keys)


@pytest.mark.parametrize("workers", [0, 2, 3])
@TORCH
def test_equal_batches_in_workers_of_torch(shards, workers):
    world = World([5, 0, 3, 7, 2])
    web = tarmac.WebDataset(world.urls(shards), shardshuffle=True).map(key_of).listed(2).with_equal_batches()
    loader = tarmac.WebLoader(web, batch_size=None, num_workers=workers)
    for _ in range(3):
        counts = Counter(chain(*loader))
        assert set(counts) == set(world.keys)
        assert counts.total() - len(counts) < 2 * max(workers, 1)


def test_equal_batches_when_stages_drop_samples(shards):
    """A reader that is short of samples continues with its next epoch: all readers make the same number of steps."""
    world = World([4, 4, 4], ranks=2)

    def make(rank):
        web = tarmac.WebDataset(world.urls(shards), nodesplitter=wds.split_by_node).map(key_of)
        return web.select(lambda key: key != "0-1").with_equal_batches(1)

    [epoch] = epochs_of(world, make)
    assert [len(items) for items in epoch] == [6, 6]


def equal(kind, web):
    """Return a pipeline that ends in one of several ways behind an equal split."""
    partial = functools.partial(wds.split_by_node, group=None)
    split = tarmac.WebDataset(web.pipeline[0].urls, nodesplitter=partial).map(key_of).listed(2)
    return {
        "loader batches": lambda: DataLoader(web.with_equal_batches(2), batch_size=2),
        "unlisted": lambda: web.listed(2).with_equal_batches().unlisted().listed(2),
        "twice": lambda: web.listed(2).with_equal_batches().with_equal_batches(),
        "wrapped splitter": split.with_equal_batches,
        "two items per sample": lambda: web.with_equal_batches(2).pipe(doubled).listed(4),
        "two epochs": lambda: web.listed(2).with_equal_batches().repeat(2),
    }[kind]()


def doubled(src):
    for item in src:
        yield from (item, item)


EQUAL = ["loader batches", "unlisted", "twice", "wrapped splitter", "two items per sample", "two epochs"]


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_batches_wherever_samples_are_batched(shards, kind):
    """25 samples on two ranks are seven batches of two on each; some samples come twice, and none is missing."""
    world = World([5] * 5, ranks=2)

    def make(rank):
        return equal(kind, tarmac.WebDataset(world.urls(shards), nodesplitter=wds.split_by_node).map(key_of))

    [epoch] = epochs_of(world, make)
    assert [len(batches) for batches in epoch] == [7 * (1 + (kind == "two epochs"))] * 2
    assert {key for batches in epoch for batch in batches for key in batch} == set(world.keys)


def test_with_epoch_overrides_equal_batches(shards):
    web = tarmac.WebDataset(World([5] * 5).urls(shards)).map(key_of).listed(2).with_equal_batches()
    assert len(list(web.with_epoch(3))) == 3


def test_invalid_arguments_of_equal_batches(shards):
    urls = World([3, 3]).urls(shards)
    with pytest.raises(UsageError, match=r"batchsize.*4"):
        tarmac.WebDataset(urls).listed(4).with_equal_batches(3)
    with pytest.raises(UsageError, match="nodesplitter"):
        tarmac.WebDataset(urls, nodesplitter=by_hand).with_equal_batches(3)
    with pytest.raises(UsageError, match="batchsize"):
        tarmac.WebDataset(urls).with_equal_batches(-1)


# Custom stages behind a split, which know nothing of parts of shards.


def renamed(sample):
    return {"url": "pipe:cat " + sample["url"]}


def renaming(src):
    for shard in src:
        yield {"url": shard["url"]}


def custom_splitter(src):
    for shard in wds.split_by_worker(src):
        yield {"url": shard["url"]}


def custom_reader(src):
    import tarfile

    for shard in src:
        with tarfile.open(shard["url"]) as archive:
            for member in archive:
                yield {"__key__": member.name.partition(".")[0]}


def after_split(kind, urls):
    read = wds.tarfile_to_samples()
    stages = {
        "map": [wds.split_by_node, wds.split_by_worker, wds.map(renamed), read],
        "generator": [wds.split_by_node, wds.split_by_worker, renaming, read],
        "opener": [wds.split_by_node, wds.split_by_worker, custom_reader],
        "wrapped splitter": [wds.split_by_node, custom_splitter, read],
        "between splitters": [wds.split_by_node, renaming, wds.split_by_worker, read],
        "single steps": [
            wds.split_by_node,
            wds.split_by_worker,
            tariterators.url_opener,
            tariterators.tar_file_expander,
            tariterators.group_by_keys,
        ],
    }[kind]
    return tarmac.DataPipeline(wds.SimpleShardList(urls), *stages, wds.map(key_of))


CUSTOM = ["map", "generator", "opener", "wrapped splitter", "between splitters", "single steps"]


@LAW
@given(WORLDS, st.sampled_from(CUSTOM))
def test_every_sample_once_behind_custom_stages(shards, world, kind):
    for epoch in epochs_of(world, lambda rank: after_split(kind, world.urls(shards))):
        assert sorted(chain(*epoch)) == world.keys


@pytest.mark.parametrize("splitter", ["nodesplitter", "workersplitter"])
def test_custom_splitters_of_a_webdataset(shards, splitter):
    world = World([3, 4], ranks=2, workers=3)

    def make(rank):
        options = {"nodesplitter": wds.split_by_node, splitter: renaming_split[splitter]}
        return tarmac.WebDataset(world.urls(shards), empty_check=False, **options).map(key_of)

    [epoch] = epochs_of(world, make)
    assert sorted(chain(*epoch)) == world.keys


def custom_node_splitter(src):
    for shard in wds.split_by_node(src):
        yield {"url": shard["url"]}


renaming_split = {"nodesplitter": custom_node_splitter, "workersplitter": custom_splitter}


# torch's loaders, whose workers live for one epoch or for all of them.


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("length", [None, 40])
@TORCH
def test_workers_of_torch(shards, persistent, length):
    world = World([5, 5, 5, 5, 5, 5, 5])
    web = tarmac.WebDataset(world.urls(shards), shardshuffle=True).map(key_of)
    web = web.with_epoch(length) if length else web
    loader = DataLoader(web, batch_size=None, num_workers=2, persistent_workers=persistent)
    orders = []
    for _ in range(4):
        orders.append(tuple(loader))
        assert set(orders[-1]) == set(world.keys)
        next(iter(loader))  # peek
    assert len(set(orders)) > 1


@pytest.mark.parametrize("length", [None, 40])
def test_workers_without_torch(shards, length):
    world = World([5, 5, 5, 5, 5, 5, 5])
    web = tarmac.WebDataset(world.urls(shards), shardshuffle=True).map(key_of)
    loader = MultiLoader(web.with_epoch(length) if length else web, workers=2)
    for _ in range(3):
        assert set(loader) == set(world.keys)
        next(iter(loader))


@pytest.mark.parametrize("set_epoch", [False, True])
@TORCH
def test_ranks_with_loaders(shards, set_epoch):
    """Seven shards, two ranks of two workers, epochs of a fixed length: every sample in every epoch."""
    world = World([5] * 7)
    loaders = []
    for rank in range(2):
        with ranked(rank):
            web = tarmac.WebDataset(world.urls(shards), shardshuffle=True, nodesplitter=wds.split_by_node)
            loaders.append(
                tarmac.WebLoader(web.map(key_of), batch_size=None, num_workers=2).with_epoch(25 - rank)
            )
    for epoch in range(4):
        keys = set()
        for rank, loader in enumerate(loaders):
            with ranked(rank):
                if rank == 0:
                    next(iter(loader))
                if set_epoch:
                    loader.set_epoch(epoch)
                keys |= set(loader)
        assert keys == set(world.keys)


def ranked(rank):
    from unittest import mock

    return mock.patch.dict("os.environ", {"RANK": str(rank), "WORLD_SIZE": "2"})


def test_set_epoch_changes_the_split(shards):
    """If all readers know the epoch, the split differs from epoch to epoch; otherwise it stays."""
    world = World([5] * 8, ranks=2)
    make = streams(world, shards, "web", True)
    with reader(0, 2, 0, 1):
        counted, explicit = make(0), make(0)
        assert len({frozenset(counted) for _ in range(4)}) == 1
        parts = set()
        for epoch in range(4):
            explicit.set_epoch(epoch)
            parts.add(frozenset(explicit))
        assert len(parts) > 1


@TORCH
def test_set_epoch_of_a_dataset_holds_for_its_loader(shards):
    world = World([5] * 8)

    def make():
        web = tarmac.WebDataset(world.urls(shards), shardshuffle=True).shuffle(5).map(key_of)
        return web, tarmac.WebLoader(web, batch_size=None, num_workers=2)

    _, loader = make()
    epochs = [list(loader) for _ in range(3)]
    web, other = make()
    web.set_epoch(2)
    assert list(other) == epochs[2]
    web.set_epoch(1)
    assert list(other) == epochs[1]


def test_an_epoch_without_samples_does_not_end_an_endless_pipeline(shards):
    urls = World([7, 7, 6]).urls(shards)
    endless = tarmac.WebDataset(urls).map(key_of).rsample(0.3).rsample(0.3).repeat()
    assert len(list(islice(endless, 500))) == 500
    assert len(list(tarmac.WebDataset(urls).map(key_of).rsample(0.02).with_epoch(34))) == 34


def test_an_endless_pipeline_that_drops_everything_raises(shards):
    urls = World([2]).urls(shards)
    with pytest.raises(NoSamples, match="100 epochs"):
        list(tarmac.WebDataset(urls).select(lambda sample: False).repeat())
    assert list(tarmac.WebDataset(urls).select(lambda sample: False)) == []
    assert list(tarmac.WebDataset(urls).select(lambda sample: False).repeat(3)) == []
    empty = World([0]).urls(shards)
    assert list(tarmac.WebDataset(empty, empty_check=False).repeat()) == []
