"""The union over all readers is every sample, whatever the shards, seeds, epochs and peeks of each."""

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
    """A splitter of a user's that looks at the environment itself."""
    return islice(src, int(os.environ["RANK"]), None, int(os.environ["WORLD_SIZE"]))


def streams(world, shards, kind, shuffle):
    """The ways to put a stream of shards together that deal them out among readers."""
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
        "own splitter": functools.partial(web, nodesplitter=by_hand),
        "shuffled list": lambda rank: pipeline(rank, wds.SimpleShardList(urls, seed=5)),
        "shuffle": lambda rank: pipeline(rank, wds.SimpleShardList(urls), wds.shuffle(3, seed=5)),
        "shuffle before a splitter of one's own": lambda rank: tarmac.DataPipeline(
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
        "own splitter",
        "shuffle before a splitter of one's own",
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
    """With epochs that are long enough for the largest share, no reader loses any of its own."""
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
        again = counts.total() - len(counts)
        assert (missing, again < readers * size) == (0, True) if tail == "pad" else again == 0
        assert missing < readers * size


def test_equal_batches_of_the_shape_that_lost_samples(shards):
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
        found = Counter(chain(*loader))
        assert set(found) == set(world.keys)
        assert found.total() - len(found) < 2 * max(workers, 1)


def test_equal_batches_when_stages_drop_samples(shards):
    """A reader that is short of samples goes on into its next pass, so that all make as many steps."""
    world = World([4, 4, 4], ranks=2)

    def make(rank):
        web = tarmac.WebDataset(world.urls(shards), nodesplitter=wds.split_by_node).map(key_of)
        return web.select(lambda key: key != "0-1").with_equal_batches(1)

    [epoch] = epochs_of(world, make)
    assert [len(items) for items in epoch] == [6, 6]


def equal(kind, web):
    """Ways to end a pipeline behind equal shares."""
    partial = functools.partial(wds.split_by_node, group=None)
    split = tarmac.WebDataset(web.pipeline[0].urls, nodesplitter=partial).map(key_of).listed(2)
    return {
        "loader batches": lambda: DataLoader(web.with_equal_batches(2), batch_size=2),
        "unlisted": lambda: web.listed(2).with_equal_batches().unlisted().listed(2),
        "twice": lambda: web.listed(2).with_equal_batches().with_equal_batches(),
        "wrapped splitter": split.with_equal_batches,
        "two of one": lambda: web.with_equal_batches(2).pipe(doubled).listed(4),
        "two passes": lambda: web.listed(2).with_equal_batches().repeat(2),
    }[kind]()


def doubled(src):
    for item in src:
        yield from (item, item)


EQUAL = ["loader batches", "unlisted", "twice", "wrapped splitter", "two of one", "two passes"]


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_batches_wherever_the_batches_are_made(shards, kind):
    """25 samples on two ranks are seven batches of two on each, some of them twice, and none is missing."""
    world = World([5] * 5, ranks=2)

    def make(rank):
        return equal(kind, tarmac.WebDataset(world.urls(shards), nodesplitter=wds.split_by_node).map(key_of))

    [epoch] = epochs_of(world, make)
    assert [len(batches) for batches in epoch] == [7 * (1 + (kind == "two passes"))] * 2
    assert {key for batches in epoch for batch in batches for key in batch} == set(world.keys)


def test_a_length_set_behind_equal_shares_counts(shards):
    web = tarmac.WebDataset(World([5] * 5).urls(shards)).map(key_of).listed(2).with_equal_batches()
    assert len(list(web.with_epoch(3))) == 3


def test_equal_batches_refuses_what_it_cannot_count(shards):
    urls = World([3, 3]).urls(shards)
    with pytest.raises(ValueError, match="batches of 4"):
        tarmac.WebDataset(urls).listed(4).with_equal_batches(3)
    with pytest.raises(ValueError, match="splitters of your own"):
        tarmac.WebDataset(urls, nodesplitter=by_hand).with_equal_batches(3)
    with pytest.raises(ValueError, match="at least one"):
        tarmac.WebDataset(urls).with_equal_batches(-1)


# What follows a split of shards that readers share: stages of the user's own that know nothing of parts.


def renamed(sample):
    return {"url": "pipe:cat " + sample["url"]}


def renaming(src):
    for shard in src:
        yield {"url": shard["url"]}


def own_splitter(src):
    for shard in wds.split_by_worker(src):
        yield {"url": shard["url"]}


def opened_by_hand(src):
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
        "opener": [wds.split_by_node, wds.split_by_worker, opened_by_hand],
        "wrapped splitter": [wds.split_by_node, own_splitter, read],
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


OWN = ["map", "generator", "opener", "wrapped splitter", "between splitters", "single steps"]


@LAW
@given(WORLDS, st.sampled_from(OWN))
def test_every_sample_once_behind_stages_of_ones_own(shards, world, kind):
    for epoch in epochs_of(world, lambda rank: after_split(kind, world.urls(shards))):
        assert sorted(chain(*epoch)) == world.keys


@pytest.mark.parametrize("splitter", ["nodesplitter", "workersplitter"])
def test_own_splitter_of_a_webdataset(shards, splitter):
    world = World([3, 4], ranks=2, workers=3)

    def make(rank):
        options = {"nodesplitter": wds.split_by_node, splitter: renaming_split[splitter]}
        return tarmac.WebDataset(world.urls(shards), empty_check=False, **options).map(key_of)

    [epoch] = epochs_of(world, make)
    assert sorted(chain(*epoch)) == world.keys


def own_node_splitter(src):
    for shard in wds.split_by_node(src):
        yield {"url": shard["url"]}


renaming_split = {"nodesplitter": own_node_splitter, "workersplitter": own_splitter}


# The loaders of torch, whose workers live for one epoch or for all of them.


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
        next(iter(loader))  # a look at the first item
    assert len(set(orders)) > 1


@pytest.mark.parametrize("length", [None, 40])
def test_workers_without_torch(shards, length):
    world = World([5, 5, 5, 5, 5, 5, 5])
    web = tarmac.WebDataset(world.urls(shards), shardshuffle=True).map(key_of)
    loader = MultiLoader(web.with_epoch(length) if length else web, workers=2)
    for _ in range(3):
        assert set(loader) == set(world.keys)
        next(iter(loader))


@pytest.mark.parametrize("told", [False, True])
@TORCH
def test_ranks_with_loaders(shards, told):
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
        found = set()
        for rank, loader in enumerate(loaders):
            with ranked(rank):
                if rank == 0:
                    next(iter(loader))
                if told:
                    loader.set_epoch(epoch)
                found |= set(loader)
        assert found == set(world.keys)


def ranked(rank):
    from unittest import mock

    return mock.patch.dict("os.environ", {"RANK": str(rank), "WORLD_SIZE": "2"})


def test_set_epoch_gives_readers_other_shards(shards):
    """Where all readers know the epoch, shares differ from epoch to epoch; otherwise they stay."""
    world = World([5] * 8, ranks=2)
    make = streams(world, shards, "web", True)
    with reader(0, 2, 0, 1):
        counted, told = make(0), make(0)
        assert len({frozenset(counted) for _ in range(4)}) == 1
        shares = set()
        for epoch in range(4):
            told.set_epoch(epoch)
            shares.add(frozenset(told))
        assert len(shares) > 1


@TORCH
def test_an_epoch_told_to_the_dataset_of_a_loader_holds_for_the_loader(shards):
    world = World([5] * 8)

    def make():
        web = tarmac.WebDataset(world.urls(shards), shardshuffle=True).shuffle(5).map(key_of)
        return web, tarmac.WebLoader(web, batch_size=None, num_workers=2)

    _, loader = make()
    passes = [list(loader) for _ in range(3)]
    web, again = make()
    web.set_epoch(2)
    assert list(again) == passes[2]
    web.set_epoch(1)
    assert list(again) == passes[1]


def test_random_stages_that_drop_everything_in_a_pass_do_not_end_an_endless_pipeline(shards):
    urls = World([7, 7, 6]).urls(shards)
    endless = tarmac.WebDataset(urls).map(key_of).rsample(0.3).rsample(0.3).repeat()
    assert len(list(islice(endless, 500))) == 500
    assert len(list(tarmac.WebDataset(urls).map(key_of).rsample(0.02).with_epoch(34))) == 34


def test_a_pipeline_that_drops_everything_in_every_pass_gives_up(shards):
    urls = World([2]).urls(shards)
    with pytest.raises(ValueError, match="100 passes"):
        list(tarmac.WebDataset(urls).select(lambda sample: False).repeat())
    assert list(tarmac.WebDataset(urls).select(lambda sample: False)) == []
    assert list(tarmac.WebDataset(urls).select(lambda sample: False).repeat(3)) == []
    empty = World([0]).urls(shards)
    assert list(tarmac.WebDataset(empty, empty_check=False).repeat()) == []
