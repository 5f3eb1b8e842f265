"""Follow the hints of streams."""

from __future__ import annotations

import operator
import re
import sqlite3

import numpy as np
import pytest
import torch

import tarmac
import tarmac.webdataset as wds
from harness.hints import follows, hinted
from harness.shards import plain
from tarmac.errors import (
    DecodeFailed,
    LoaderError,
    MismatchedBatch,
    NoSamples,
    NotFound,
    StateMismatch,
    UnsafeCodec,
    UrlError,
    UsageError,
    WriteError,
)
from tarmac.stream import shared_memory

KEYS = ["a", "b", "c", "d"]


@pytest.fixture
def shard(tmp_path):
    """Four samples with the classes 0 to 3."""
    path = tmp_path / "x.tar"
    path.write_bytes(plain([(f"{key}.cls", b"%d" % number) for number, key in enumerate(KEYS)]))
    return str(path)


def keys(dataset):
    return [sample["__key__"] for sample in dataset]


def reader(monkeypatch, rank=0, ranks=1):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))


@follows("delete it if it is a sample cache, which will be rebuilt, or use another file.")
def test_a_file_that_is_not_a_sample_cache(shard, tmp_path):
    with sqlite3.connect(tmp_path / "c.db") as db:
        db.execute("CREATE TABLE samples (mine TEXT)")
    db.close()
    with hinted(
        "delete it if it is a sample cache, which will be rebuilt, or use another file.", DecodeFailed
    ):
        keys(tarmac.WebDataset(shard).compose(wds.DBCache(tmp_path / "c.db")))
    assert keys(tarmac.WebDataset(shard).compose(wds.DBCache(tmp_path / "other.db"))) == KEYS
    (tmp_path / "c.db").unlink()
    assert keys(tarmac.WebDataset(shard).compose(wds.DBCache(tmp_path / "c.db"))) == KEYS


@follows("delete the file to rebuild it; the key is in TARMAC_HOME.")
def test_a_sample_cache_of_another_user(shard, tmp_path, monkeypatch):
    hint = "delete the file to rebuild it; the key is in TARMAC_HOME."
    cached = tarmac.WebDataset(shard).compose(wds.DBCache(tmp_path / "c.db"))
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    monkeypatch.setenv("TARMAC_HOME", str(theirs))
    assert keys(cached) == KEYS
    monkeypatch.setenv("TARMAC_HOME", str(mine))
    with hinted(hint, UnsafeCodec):
        keys(cached)
    monkeypatch.setenv("TARMAC_HOME", str(theirs))
    assert keys(cached) == KEYS
    monkeypatch.setenv("TARMAC_HOME", str(mine))
    (tmp_path / "c.db").unlink()
    assert keys(cached) == KEYS
    (tmp_path / "c.db").chmod(0o666)
    with hinted(hint, UnsafeCodec):
        keys(cached)
    (tmp_path / "c.db").unlink()
    assert keys(cached) == KEYS


@follows("delete it.")
def test_a_key_that_others_may_read(shard, tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    assert keys(tarmac.WebDataset(shard).compose(wds.DBCache(tmp_path / "c.db"))) == KEYS
    (key,) = (tmp_path / "home").rglob("sample-cache.key")
    key.chmod(0o644)
    with hinted("delete it.", UnsafeCodec):
        keys(tarmac.WebDataset(shard).compose(wds.DBCache(tmp_path / "d.db")))
    key.unlink()
    assert keys(tarmac.WebDataset(shard).compose(wds.DBCache(tmp_path / "d.db"))) == KEYS


@follows("set TARMAC_HOME to a writable directory.")
def test_a_home_that_cannot_be_written(shard, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "file/home"))
    with hinted("set TARMAC_HOME to a writable directory.", WriteError):
        keys(tarmac.WebDataset(shard).compose(wds.DBCache(tmp_path / "c.db")))
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path))
    assert keys(tarmac.WebDataset(shard).compose(wds.DBCache(tmp_path / "c.db"))) == KEYS


@follows("with_epoch(n), which sets the same number everywhere.")
def test_equal_batches_of_resampled_shards(shard):
    with hinted("with_epoch(n), which sets the same number everywhere.", UsageError):
        tarmac.WebDataset(shard, resampled=True).batched(2).with_equal_batches()
    assert len(list(tarmac.WebDataset(shard, resampled=True).batched(2).with_epoch(3))) == 3


@follows('pick common fields with to_tuple("jpg;png", "cls") before batched(), or select() samples.')
def test_different_fields(tmp_path):
    shard = tmp_path / "x.tar"
    shard.write_bytes(plain([("a.jpg", b"1"), ("a.cls", b"0"), ("b.png", b"2"), ("b.cls", b"1")]))
    dataset = tarmac.WebDataset(str(shard))
    with hinted(
        'pick common fields with to_tuple("jpg;png", "cls") before batched(), or select() samples.',
        MismatchedBatch,
    ):
        list(dataset.batched(2))
    (batch,) = tarmac.WebDataset(str(shard)).to_tuple("jpg;png", "cls").batched(2)
    assert batch[0] == [b"1", b"2"]
    (batch,) = tarmac.WebDataset(str(shard)).select(lambda sample: "jpg" in sample).batched(2)
    assert batch["jpg"] == [b"1"]


@follows("resize or pad before batched(), or make lists with batched(collation_fn=None).")
def test_different_shapes(shard):
    def array(sample):
        return (np.zeros(int(sample["cls"])),)

    def arrays():
        return tarmac.WebDataset(shard).map(array)

    hint = "resize or pad before batched(), or make lists with batched(collation_fn=None)."
    with hinted(hint, MismatchedBatch):
        list(arrays().batched(4))
    (batch,) = arrays().map_tuple(lambda value: np.resize(value, 2)).batched(4)
    assert batch[0].shape == (4, 2)
    (batch,) = arrays().batched(4, collation_fn=None)
    assert len(batch) == 4


@follows("build the same pipeline; only stages after the last shuffle may differ.")
def test_a_state_of_another_pipeline(shard):
    def pipeline(size, field="__key__"):
        return tarmac.WebDataset(shard).shuffle(size, seed=1).map(operator.itemgetter(field))

    def resumed(dataset, state):
        dataset.load_state_dict(state)
        return list(dataset)

    saved = pipeline(3)
    samples = iter(saved)
    next(samples)
    state, rest = saved.state_dict(), list(samples)
    with hinted("build the same pipeline; only stages after the last shuffle may differ.", StateMismatch):
        resumed(pipeline(2), state)
    assert resumed(pipeline(3), state) == rest
    assert resumed(pipeline(3, "cls"), state) == [b"%d" % KEYS.index(key) for key in rest]


RESHAPED = "resume with the same numbers; a Loader over an indexed Dataset resumes with any."
OF_ANOTHER = "save a state on every rank; with a Loader over an indexed Dataset, one state serves all ranks."


@follows(
    "resume with the same numbers; a Loader over an indexed Dataset resumes with any.",
    "save a state on every rank; with a Loader over an indexed Dataset, one state serves all ranks.",
)
def test_a_state_of_another_rank(shard, monkeypatch):
    def pipeline():
        return tarmac.WebDataset(shard, nodesplitter=wds.split_by_node)

    def saved(rank):
        reader(monkeypatch, rank, 2)
        dataset = pipeline()
        samples = iter(dataset)
        next(samples)
        return dataset.state_dict(), keys(samples)

    def resumed(state, rank, ranks):
        reader(monkeypatch, rank, ranks)
        dataset = pipeline()
        dataset.load_state_dict(state)
        return keys(dataset)

    states = [saved(0), saved(1)]
    with hinted(RESHAPED, StateMismatch):
        resumed(states[0][0], 0, 1)
    with hinted(OF_ANOTHER, StateMismatch):
        resumed(states[0][0], 1, 2)
    for rank, (state, rest) in enumerate(states):
        assert resumed(state, rank, 2) == rest

    dataset = tarmac.Dataset(shard)
    with tarmac.Loader(dataset, 1, rank=0, world_size=2) as loader:
        first = next(iter(loader))["__key__"]
        state = loader.state_dict()
    rest = []
    for ranks in (1, 2):
        rest.append([])
        for rank in range(ranks):
            with tarmac.Loader(dataset, 1, rank=rank, world_size=ranks) as loader:
                loader.load_state_dict(state)
                rest[-1] += [key for batch in loader for key in batch["__key__"]]
    assert len(rest[0]) == len(rest[1]) == 2
    assert set(rest[0]) == set(rest[1])
    assert not set(rest[0]) & set(first)
    dataset.close()


@follows("nodesplitter=tarmac.webdataset.split_by_node")
def test_several_ranks_without_a_splitter(tmp_path, monkeypatch):
    for number in range(2):
        (tmp_path / f"x-{number}.tar").write_bytes(plain([(f"{number}.cls", b"")]))
    shards = str(tmp_path / "x-{0..1}.tar")
    reader(monkeypatch, 1, 2)
    with hinted("nodesplitter=tarmac.webdataset.split_by_node", UsageError):
        keys(tarmac.WebDataset(shards))
    assert keys(tarmac.WebDataset(shards, nodesplitter=tarmac.webdataset.split_by_node)) == ["1"]


@follows("pass empty_check=False to allow an empty list.")
def test_an_empty_list():
    with hinted("pass empty_check=False to allow an empty list.", NotFound):
        wds.ResampledShards([])
    assert list(wds.ResampledShards([], empty_check=False)) == []


@follows("check the shard list.")
@pytest.mark.parametrize("stage", [lambda: wds.resampled(3), lambda: wds.non_empty])
def test_a_stage_without_items(shard, stage):
    shards = wds.SimpleShardList([shard])
    with hinted("check the shard list.", NoSamples):
        list(wds.DataPipeline(shards, wds.select(lambda item: False), stage()))
    items = list(wds.DataPipeline(shards, stage()))
    assert {item["url"] for item in items} == {shard}


@follows("remove one.", "use `resample`, which draws with replacement.")
def test_draws_of_shards(shard):
    def urls(**draw):
        return [item["url"] for item in wds.MultiShardSample({"datasets": [{"shards": [shard], **draw}]})]

    with hinted("remove one.", UrlError):
        urls(resample=1, choose=1)
    assert urls(resample=1) == urls(choose=1) == [shard]
    with hinted("use `resample`, which draws with replacement.", UrlError):
        urls(choose=3)
    assert urls(resample=3) == [shard] * 3


SMALL = (
    "enlarge it (docker run --shm-size=8g), or use smaller batches or fewer workers; "
    "tarmac.Loader does not need it."
)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@follows(
    "enlarge it (docker run --shm-size=8g), or use smaller batches or fewer workers; "
    "tarmac.Loader does not need it."
)
def test_a_full_shared_memory(shard, monkeypatch):
    share, free = torch.Tensor.share_memory_, [3000]

    def share_memory_(tensor):
        if tensor.nbytes > free[0]:
            raise RuntimeError("unable to allocate shared memory")
        return share(tensor)

    def tensor(sample):
        return torch.zeros(250)  # 1000 bytes

    def batches(size, workers=1):
        dataset = tarmac.WebDataset(shard).map(tensor).batched(size, collation_fn=torch.stack)
        return len(list(tarmac.WebLoader(dataset, batch_size=None, num_workers=workers)))

    monkeypatch.setattr(torch.Tensor, "share_memory_", share_memory_)
    monkeypatch.setattr(shared_memory, "_TIMEOUT", 0)
    with pytest.raises(LoaderError, match=re.escape(SMALL)):  # torch puts the message into another
        batches(4)
    assert batches(2) == 2
    assert batches(4, workers=0) == 1
    dataset = tarmac.Dataset(shard).map(tensor)
    with tarmac.Loader(dataset, 4, processes=1, collate=torch.stack, start_method="fork") as loader:
        assert len(list(loader)) == 1
    free[0] = 5000
    assert batches(4) == 1


@follows("check the conditions of select() and the errors in drops().")
def test_stages_that_drop_every_sample(shard):
    def bad(sample):
        raise ValueError("wrong")

    dataset = tarmac.WebDataset(shard).map(bad, handler=wds.ignore_and_continue).repeat()
    with hinted("check the conditions of select() and the errors in drops().", NoSamples):
        list(dataset)
    assert "wrong" in str(dataset.drops())
    with hinted("check the conditions of select() and the errors in drops().", NoSamples):
        list(tarmac.WebDataset(shard).select(lambda sample: False).repeat())
    assert keys(tarmac.WebDataset(shard).select(lambda sample: True).repeat(2)) == KEYS * 2
