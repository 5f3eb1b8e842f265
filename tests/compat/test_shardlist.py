"""Lists of shards as a sequence, and what hurt users of wids: one test each."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import tarfile
import threading

import pytest
import torch

from compat.conftest import ALL, contents, keys, shard
from harness.shards import plain
from tarmac.compat.samplers import ChunkedSampler, DistributedChunkedSampler, ShardListSampler
from tarmac.compat.shardlist import (
    LRUShards,
    ShardListDataset,
    hash_dataset_name,
)
from tarmac.errors import BadManifest

# ---- samples


def test_samples_are_those_of_wids(listed):
    listed[1]["dataset"] = "second"
    dataset = ShardListDataset(listed, transformations=[])
    assert contents(dataset[4]) == {
        ".cls": b"11",
        ".txt": b"11",
        "__key__": "1/1",
        "__dataset__": "second",
        "__index__": 4,
        "__shard__": listed[1]["url"],
        "__shardindex__": 1,
    }
    assert dataset[0]["__dataset__"] is None
    assert (len(dataset), dataset.total_length, dataset.lengths) == (9, 9, [3, 2, 4])
    assert dataset.cum_lengths.tolist() == [3, 5, 9]
    assert keys(dataset) == ALL
    assert keys(reversed(dataset)) == ALL[::-1]
    found, inner, described = dataset.get_shard(4)
    assert (len(found), inner, described) == (2, 1, listed[1])
    assert "9 samples in 3 shards" in repr(dataset)


def test_negative_numbers_count_from_the_end(listed):
    """In wids -1 was the last sample of the first shard."""
    dataset = ShardListDataset(listed)
    assert dataset[-1]["__key__"] == "2/3"
    assert dataset[-1]["__index__"] == 8
    assert dataset[-9]["__key__"] == "0/0"
    assert dataset[torch.tensor(4)]["__key__"] == "1/1"
    for index in (9, -10):
        with pytest.raises(IndexError, match="9 samples"):
            dataset[index]


def test_transformations(listed):
    dataset = ShardListDataset(listed)
    assert (dataset[1][".cls"], dataset[1][".txt"]) == (1, "01")
    assert dataset.add_transform(lambda sample: sample[".cls"]) is dataset
    assert [dataset[i] for i in range(3)] == [0, 1, 2]
    assert ShardListDataset(listed, transformations=[keys_of, len])[0] == 7
    assert isinstance(ShardListDataset(listed, transformations=None)[0][".cls"], io.BytesIO)


def keys_of(sample):
    return list(sample)


# ---- lists


def test_lists_in_json(listed, tmp_path, monkeypatch):
    relative = [item | {"url": os.path.basename(item["url"])} for item in listed]
    spec = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": "mine", "shardlist": relative}
    path = tmp_path / "index.json"
    path.write_text(json.dumps(spec))
    dataset = ShardListDataset(str(path))
    assert (dataset.dataset_name, dataset.base) == ("mine", str(tmp_path))
    assert keys(dataset) == keys(ShardListDataset(path)) == ALL
    with open(path) as stream:
        assert keys(ShardListDataset(stream, base=str(tmp_path), dataset_name="x")) == ALL
    monkeypatch.chdir(tmp_path.parent)
    assert keys(ShardListDataset(f"{tmp_path.name}/index.json")) == ALL
    assert ShardListDataset(str(path), options={"name": "other"}).dataset_name == "other"


def test_base(listed, tmp_path):
    """In wids neither the base of a list in JSON nor that of a list in code had an effect."""
    relative = [item | {"url": os.path.basename(item["url"])} for item in listed]
    assert keys(ShardListDataset(relative, base=str(tmp_path))) == ALL
    (tmp_path / "d").mkdir()
    path = tmp_path / "d" / "index.json"
    path.write_text(json.dumps({"wids_version": 1, "base": str(tmp_path), "shardlist": relative}))
    dataset = ShardListDataset(str(path))
    assert keys(dataset) == ALL
    assert dataset.base == str(tmp_path)


def test_manifests_of_tarmac_are_lists(listed, tmp_path):
    from tarmac.indexing.manifest import Manifest, Shard, write_manifest

    shards = [Shard(item["url"], item["nsamples"]) for item in listed]
    write_manifest(Manifest(shards, "both"), str(tmp_path / "m.json"))
    assert keys(ShardListDataset(str(tmp_path / "m.json"))) == ALL


def test_wrong_numbers_of_samples_are_errors(listed):
    listed[0]["nsamples"] = 2
    with pytest.raises(BadManifest, match="says 2 samples, the shard has 3"):
        ShardListDataset(listed)[0]
    with pytest.raises(BadManifest, match="nsamples"):
        ShardListDataset([{"url": "a.tar"}])


def test_no_shards_and_no_samples(tmp_path):
    dataset = ShardListDataset([])
    assert (len(dataset), list(dataset)) == (0, [])
    (tmp_path / "none.tar").write_bytes(plain([]))
    (tmp_path / "one.tar").write_bytes(shard(0, 1))
    listed = [{"url": str(tmp_path / f"{name}.tar"), "nsamples": name == "one"} for name in ("none", "one")]
    assert keys(ShardListDataset(listed)) == ["0/0"]
    assert len(LRUShards(1).get_shard(listed[0]["url"])) == 0
    with pytest.raises(TypeError, match="not dict"):
        ShardListDataset({"shardlist": []})


def test_names():
    assert ShardListDataset([]).dataset_name == hash_dataset_name("[]")
    assert hash_dataset_name("abc") == "ungWv48Bz-pBQUDe"  # as wids makes them


def test_only_the_files_are_touched(listed, tmp_path):
    before = sorted(tmp_path.iterdir())
    ShardListDataset(listed)[0]
    assert sorted(tmp_path.iterdir()) == before


# ---- open shards


def test_open_shards_are_limited_and_counted(listed):
    dataset = ShardListDataset(listed, lru_size=2)
    for index in (0, 1, 4, 0, 8, 4):
        dataset[index]
    assert dataset.get_stats() == (6, 4)
    assert len(dataset.cache) == 2
    dataset.close()
    dataset.close()
    assert len(dataset.cache) == 0
    assert dataset[0]["__key__"] == "0/0"
    dataset.cache.reset_stats()
    assert dataset.get_stats() == (0, 0)


def test_orders_that_open_too_many_shards_are_pointed_out_once(listed, caplog):
    dataset = ShardListDataset(listed, lru_size=1, transformations=[])
    with caplog.at_level(logging.WARNING):
        for index in range(120):
            dataset[index * 4 % 9]
    assert len(caplog.records) == 1
    assert "ChunkedSampler" in caplog.text
    pickle.dumps(dataset)  # wids could not after that
    caplog.clear()
    ShardListDataset(listed, lru_size=1000)
    assert "lru_size=1000" in caplog.text


def test_threads_may_share_it(listed):
    dataset = ShardListDataset(listed, lru_size=1)
    found = []

    def read():
        found.append([dataset[index]["__key__"] for index in range(9) for _ in range(5)])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[key for key in ALL for _ in range(5)]] * 4


def test_single_shards(listed):
    shards = LRUShards(1)
    assert len(shards.get_shard(listed[0]["url"])) == 3
    assert shards.last_missed
    shards.get_shard(listed[0]["url"])
    assert (shards.accesses, shards.misses, shards.last_missed) == (2, 1, False)


# ---- torch


def key_and_class(sample):
    return sample["__key__"], sample[".cls"]


@pytest.mark.parametrize(
    ("method", "kind"),
    [(None, ChunkedSampler), ("fork", DistributedChunkedSampler), ("spawn", ShardListSampler)],
)
def test_loaders_of_torch(listed, method, kind):
    dataset = ShardListDataset(listed).add_transform(key_and_class)
    dataset[0]  # open in the parent
    sampler = kind(dataset)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=4,
        sampler=sampler,
        num_workers={None: 0, "fork": 2, "spawn": 1}[method],  # a fresh interpreter imports torch first
        multiprocessing_context=method,
    )
    assert len(loader) == 3
    found = [key for names, _ in loader for key in names]
    assert sorted(found) == ALL
    assert found == [ALL[index] for index in kind(dataset)]


def test_it_pickles_small(listed):
    dataset = ShardListDataset(listed)
    dataset[0]
    copy = pickle.loads(pickle.dumps(dataset))
    assert keys(copy) == ALL
    assert len(copy.cache) == 3
    assert copy.get_stats() == (10, 4)


def test_long_names_in_shards(tmp_path):
    names = [("d" * 90 + f"/long-{'x' * 80}-{i}.cls", b"1") for i in range(3)]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        (tmp_path / "a.tar").write_bytes(plain(names, form))
        dataset = ShardListDataset([{"url": str(tmp_path / "a.tar"), "nsamples": 3}])
        assert keys(dataset) == [name[:-4] for name, _ in names]
