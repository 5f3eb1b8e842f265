"""Lists of shards as a sequence, with a test for each known defect of wids."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import threading

import pytest
import torch

from compat.conftest import ALL, contents, keys, shard
from harness.shards import plain
from tarmac.compat.wids.samplers import ChunkedSampler, DistributedChunkedSampler, ShardListSampler
from tarmac.compat.wids.wids import (
    LRUShards,
    ShardListDataset,
    hash_dataset_name,
)
from tarmac.errors import BadManifest


def test_samples(shards):
    shards[1]["dataset"] = "second"
    dataset = ShardListDataset(shards, transformations=[])
    assert contents(dataset[4]) == {
        ".cls": b"11",
        ".txt": b"11",
        "__key__": "1/1",
        "__dataset__": "second",
        "__index__": 4,
        "__shard__": shards[1]["url"],
        "__shardindex__": 1,
    }
    assert dataset[0]["__dataset__"] is None
    assert (len(dataset), dataset.total_length, dataset.lengths) == (9, 9, [3, 2, 4])
    assert dataset.cum_lengths.tolist() == [3, 5, 9]
    assert keys(dataset) == ALL
    assert keys(reversed(dataset)) == ALL[::-1]
    samples, row, entry = dataset.get_shard(4)
    assert (len(samples), row, entry) == (2, 1, shards[1])
    assert "9 samples in 3 shards" in repr(dataset)


def test_negative_numbers_count_from_the_end(shards):
    """In wids, -1 was the last sample of the first shard."""
    dataset = ShardListDataset(shards)
    assert dataset[-1]["__key__"] == "2/3"
    assert dataset[-1]["__index__"] == 8
    assert dataset[-9]["__key__"] == "0/0"
    assert dataset[torch.tensor(4)]["__key__"] == "1/1"
    for index in (9, -10):
        with pytest.raises(IndexError, match="9 samples"):
            dataset[index]


def test_transformations(shards):
    dataset = ShardListDataset(shards)
    assert (dataset[1][".cls"], dataset[1][".txt"]) == (1, "01")
    assert dataset.add_transform(lambda sample: sample[".cls"]) is dataset
    assert [dataset[i] for i in range(3)] == [0, 1, 2]
    assert ShardListDataset(shards, transformations=[keys_of, len])[0] == 7
    assert isinstance(ShardListDataset(shards, transformations=None)[0][".cls"], io.BytesIO)


def keys_of(sample):
    return list(sample)


def test_lists_in_json(shards, tmp_path, monkeypatch):
    relative = [item | {"url": os.path.basename(item["url"])} for item in shards]
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


def test_base_of_a_python_list(shards, tmp_path):
    """In wids, `base` had no effect."""
    relative = [item | {"url": os.path.basename(item["url"])} for item in shards]
    assert keys(ShardListDataset(relative, base=str(tmp_path))) == ALL


def test_manifests_of_tarmac_are_lists(shards, tmp_path):
    from tarmac.indexing.manifest import Manifest, Shard, write_manifest

    shards = [Shard(item["url"], item["nsamples"]) for item in shards]
    write_manifest(Manifest(shards, "both"), str(tmp_path / "m.json"))
    assert keys(ShardListDataset(str(tmp_path / "m.json"))) == ALL


def test_wrong_numbers_of_samples_are_errors(shards):
    shards[0]["nsamples"] = 2
    with pytest.raises(BadManifest, match=r"x-0\.tar: .*\b2 .*\b3\b"):
        ShardListDataset(shards)[0]
    with pytest.raises(BadManifest, match="nsamples"):
        ShardListDataset([{"url": "a.tar"}])


def test_no_shards_and_no_samples(tmp_path):
    dataset = ShardListDataset([])
    assert (len(dataset), list(dataset)) == (0, [])
    (tmp_path / "none.tar").write_bytes(plain([]))
    (tmp_path / "one.tar").write_bytes(shard(0, 1))
    shards = [{"url": str(tmp_path / f"{name}.tar"), "nsamples": name == "one"} for name in ("none", "one")]
    assert keys(ShardListDataset(shards)) == ["0/0"]
    assert len(LRUShards(1).get_shard(shards[0]["url"])) == 0
    with pytest.raises(TypeError, match="`shards`"):
        ShardListDataset({"shardlist": []})


def test_names():
    assert ShardListDataset([]).dataset_name == hash_dataset_name("[]")
    assert hash_dataset_name("abc") == "ungWv48Bz-pBQUDe"  # as wids makes them


def test_no_files_are_created(shards, tmp_path):
    existing = sorted(tmp_path.iterdir())
    ShardListDataset(shards)[0]
    assert sorted(tmp_path.iterdir()) == existing


def test_open_shards_are_limited_and_counted(shards):
    dataset = ShardListDataset(shards, lru_size=2)
    for index in (0, 1, 4, 0, 8, 4):
        dataset[index]
    assert dataset.get_stats() == (6, 3)
    assert len(dataset.cache) == 2
    dataset.close()
    dataset.close()
    assert len(dataset.cache) == 0
    assert dataset[0]["__key__"] == "0/0"
    dataset.cache.reset_stats()
    assert dataset.get_stats() == (0, 0)


def test_orders_that_open_too_many_shards_are_logged_once(shards, caplog):
    dataset = ShardListDataset(shards, lru_size=1, transformations=[])
    with caplog.at_level(logging.WARNING):
        for index in range(120):
            dataset[index * 4 % 9]
    assert len(caplog.records) == 1
    assert "ChunkedSampler" in caplog.text
    pickle.dumps(dataset)  # which wids could not after the warning
    caplog.clear()
    ShardListDataset(shards, lru_size=1000)
    assert "lru_size=1000" in caplog.text


def test_threads(shards):
    dataset = ShardListDataset(shards, lru_size=1)
    result = []

    def read():
        result.append([dataset[index]["__key__"] for index in range(9) for _ in range(5)])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == [[key for key in ALL for _ in range(5)]] * 4


def test_single_shards(shards):
    opened = LRUShards(1)
    for _ in range(2):
        assert len(opened.get_shard(shards[0]["url"])) == 3
    assert (opened.accesses, opened.misses) == (2, 1)


def key_and_class(sample):
    return sample["__key__"], sample[".cls"]


@pytest.mark.parametrize(
    ("method", "kind"),
    [(None, ChunkedSampler), ("fork", DistributedChunkedSampler), ("spawn", ShardListSampler)],
)
def test_torch_loaders(shards, method, kind):
    dataset = ShardListDataset(shards).add_transform(key_and_class)
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
    result = [key for names, _ in loader for key in names]
    assert sorted(result) == ALL
    assert result == [ALL[index] for index in kind(dataset)]


def test_pickling(shards):
    dataset = ShardListDataset(shards)
    dataset[0]
    copy = pickle.loads(pickle.dumps(dataset))
    assert keys(copy) == ALL
    assert len(copy.cache) == 3
    assert copy.get_stats() == (10, 4)
