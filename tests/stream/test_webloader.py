"""Pipelines in torch's loaders: start methods, workers, exact resume."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.data import DataLoader

import tarmac
import tarmac.webdataset as wds
from harness.resume import assert_resumes
from harness.shards import plain
from tarmac.errors import StateMismatch
from tarmac.stream.webdataset import WebDataset
from tarmac.stream.webloader import WebLoader

# Forked workers inherit threads of the test runner; torch warns on machines with few cores.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

ALL = [f"{number}{i}" for number in range(4) for i in range(6)]


@pytest.fixture
def shards(tmp_path):
    for number in range(4):
        files = [(f"{number}{i}.cls", b"%d" % i) for i in range(6)]
        (tmp_path / f"x-{number}.tar").write_bytes(plain(files))
    return str(tmp_path / "x-{0..3}.tar")


def key_of(sample):
    return sample["__key__"]


def as_list(rows):
    return rows


@pytest.mark.parametrize("workers", [0, 1, 2, 4, 5])
def test_every_sample_once_in_a_plain_dataloader(shards, workers):
    dataset = WebDataset(shards, shardshuffle=10).shuffle(5).map(key_of)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    epochs = [list(loader) for _ in range(3)]
    assert all(sorted(epoch) == ALL for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_start_methods(shards, method):
    dataset = WebDataset(shards, shardshuffle=10).shuffle(5).decode().to_tuple("__key__", "cls").batched(4)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    assert sorted(key for keys, _ in loader for key in keys) == ALL


def test_persistent_workers_shuffle_in_each_epoch(shards):
    dataset = WebDataset(shards, shardshuffle=10).shuffle(5).map(key_of)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    assert len({tuple(loader) for _ in range(3)}) == 3


def test_webloader_is_fluent(shards):
    loader = WebLoader(WebDataset(shards).map(key_of).batched(3, as_list), batch_size=None, num_workers=2)
    assert sorted(loader.unlisted()) == ALL
    batched = WebLoader(WebDataset(shards).decode().to_tuple("cls"), batch_size=4, num_workers=0)
    assert [len(labels) for (labels,) in batched] == [4] * 6
    assert isinstance(next(iter(batched))[0], torch.Tensor)
    again = (
        WebLoader(WebDataset(shards).map(key_of), batch_size=None, num_workers=2)
        .shuffle(10)
        .listed(5)
        .with_epoch(3)
    )
    assert len(list(again)) == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_webloader_over_a_mixture(shards, workers):
    def make():
        mix = wds.RandomMix(
            [WebDataset(shards).map(key_of), WebDataset(shards, seed=1).map(key_of)], longest=True
        )
        return WebLoader(mix, batch_size=None, num_workers=workers)

    assert sorted(make()) == sorted(ALL + ALL)
    assert assert_resumes(make) > 6


def test_webloader_over_a_map_style_dataset():
    assert [x.tolist() for x in WebLoader(list(range(6)), batch_size=2)] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("shape", ["plain", "shuffled behind the workers"])
def test_resume_at_every_step(shards, workers, shape):
    def make():
        dataset = (
            WebDataset(shards, shardshuffle=10, seed=1).shuffle(4, seed=1).map(key_of).batched(3, as_list)
        )
        loader = WebLoader(dataset, batch_size=None, num_workers=workers)
        return loader if shape == "plain" else loader.unlisted().shuffle(5, seed=1).listed(4)

    assert assert_resumes(make) > 6


def test_resume_continues_into_the_next_epoch(shards):
    def make():
        dataset = WebDataset(shards, shardshuffle=10, seed=1).shuffle(4, seed=1).map(key_of)
        return WebLoader(dataset, batch_size=None, num_workers=2)

    whole = make()
    epochs = [list(whole) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    started = make()
    list(started)
    items = iter(started)
    head = [next(items) for _ in range(7)]
    resumed = make()
    resumed.load_state_dict(started.state_dict())
    del items
    assert head + list(resumed) == epochs[1]
    assert list(resumed) == epochs[2]


def test_another_number_of_workers_raises(shards):
    def make(workers):
        return WebLoader(WebDataset(shards).map(key_of), batch_size=None, num_workers=workers)

    loader = make(2)
    next(iter(loader))
    with pytest.raises(StateMismatch, match="2 workers"):
        make(3).load_state_dict(loader.state_dict())


@pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")
def test_stateful_dataloader_of_torchdata(shards):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make():
        return StatefulDataLoader(
            WebDataset(shards, seed=3).shuffle(5, seed=1).map(key_of), batch_size=None, num_workers=2
        )

    whole = list(make())
    loader = make()
    items = iter(loader)
    head = [next(items) for _ in range(5)]
    state = loader.state_dict()
    del items
    resumed = make()
    resumed.load_state_dict(state)
    assert head + list(resumed) == whole


@pytest.mark.filterwarnings("ignore:.*set_vital.*:UserWarning")
def test_stateful_dataloader_over_a_shard_list(shards):
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(wds.SimpleShardList(shards), batch_size=None)
    items = iter(loader)
    next(items)
    resumed = StatefulDataLoader(wds.SimpleShardList(shards), batch_size=None)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == list(items)


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
def test_an_unpicklable_stage_is_named(shards):
    dataset = WebDataset(shards).map(lambda sample: sample)
    with pytest.raises(tarmac.errors.NotPicklable, match=r"stage 5, Map.*lambda"):
        list(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn"))


def fail_on_threes(sample):
    if sample["cls"] == b"3":
        raise ValueError("three")
    return sample["__key__"]


@pytest.mark.parametrize("workers", [0, 2])
def test_drops_of_workers_are_reported(shards, workers):
    dataset = WebDataset(shards).map(fail_on_threes, handler=wds.ignore_and_continue)
    loader = WebLoader(dataset, batch_size=None, num_workers=workers)
    assert len(list(loader)) == 20
    counts = {stage: drops.count for stage, drops in loader.drops().items() if drops.count}
    assert sum(counts.values()) == 4
    assert all(stage.startswith("worker ") for stage in counts)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch", [1, 4, 5, 24, 100])
def test_batches_match_those_of_a_dataloader(shards, batch, drop_last):
    dataset = WebDataset(shards).map(key_of)
    plain_loader = DataLoader(dataset, batch_size=batch, drop_last=drop_last)
    ours = WebLoader(WebDataset(shards).map(key_of), batch_size=batch, drop_last=drop_last)
    assert list(ours) == list(plain_loader)


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"WebLoader: .*tarmac-data\[torch\]"):
        tarmac.WebLoader([1, 2], batch_size=None)
