"""Follow the hints of the packages for programs written for webdataset and wids, and of the steps of samples."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tarmac
import tarmac.compat
import tarmac.webdataset as wds
from harness.commands import run
from harness.hints import follows, hinted
from harness.shards import plain
from tarmac.compat import webdataset as compat
from tarmac.compat import wids
from tarmac.errors import (
    BadManifest,
    CommitFailed,
    DigestMismatch,
    EncodeFailed,
    UnsafeCodec,
    UnsafeUrl,
    UnsupportedScheme,
    UsageError,
    WorkerFailed,
)
from tarmac.runtime.worker_info import current_worker_info


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(plain([("a.cls", b"1"), ("a.txt", b"x"), ("b.cls", b"2"), ("b.txt", b"y")]))
    return str(path)


def keys(dataset):
    return [sample["__key__"] for sample in dataset]


@follows("WebDataset, which reads local shards.")
def test_a_local_file_in_secure_mode(shard, monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "1")
    with hinted("WebDataset, which reads local shards.", UnsafeUrl):
        wds.gopen(shard)
    assert keys(wds.WebDataset(shard)) == ["a", "b"]


@follows("unset GOPEN_REWRITE.")
def test_rewritten_urls_in_secure_mode(shard, monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "1")
    monkeypatch.setenv("GOPEN_REWRITE", "x=y")
    with hinted("unset GOPEN_REWRITE.", UnsafeUrl):
        wds.gopen("http://127.0.0.1:9/x.tar")
    monkeypatch.delenv("GOPEN_REWRITE")
    with pytest.raises(tarmac.errors.TransferError):  # no server listens there
        wds.gopen("http://127.0.0.1:9/x.tar", retries=0).read()


@follows("a json, npy or npz field.")
def test_a_torch_file_in_secure_mode(tmp_path, monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "1")
    with hinted("a json, npy or npz field.", UnsafeCodec):
        compat.autodecode.torch_loads(b"")
    with tarmac.TarWriter(tmp_path / "x.tar") as writer:
        writer.write({"__key__": "a", "json": [1], "npy": np.ones(2), "npz": {"x": np.ones(2)}})
    (sample,) = wds.WebDataset(str(tmp_path / "x.tar")).decode()
    assert (sample["json"], sample["npy"].sum(), sample["npz"]["x"].sum()) == ([1], 2, 2)


@follows('gopen_schemes["{}"] = function.')
def test_an_unknown_scheme_of_gopen(shard):
    with hinted('gopen_schemes["{}"] = function.', UnsupportedScheme):
        wds.gopen_schemes["__default__"]("mine://x.tar")
    try:
        wds.gopen_schemes["mine"] = lambda url, mode="rb", bufsize=8192, **kw: open(shard, mode)
        with wds.gopen("mine://x.tar") as stream:
            assert stream.read(5) == b"a.cls"
        assert keys(wds.WebDataset("mine://x.tar")) == ["a", "b"]
    finally:
        wds.gopen_schemes.pop("mine", None)


@follows("mkdir -p {}")
def test_a_missing_cache_directory(shard, tmp_path):
    directory = tmp_path / "a cache"
    with hinted("mkdir -p {}", UsageError) as caught:
        compat.WebDataset(shard, cache_dir=str(directory))
    subprocess.run(caught.value.hint, shell=True, check=True)
    assert keys(compat.WebDataset(shard, cache_dir=str(directory))) == ["a", "b"]


@follows("create the directory first.")
def test_a_missing_directory_of_a_writer(tmp_path):
    target = tmp_path / "absent/x.tar"
    with hinted("create the directory first.", CommitFailed):
        compat.TarWriter(str(target))
    target.parent.mkdir()
    with compat.TarWriter(str(target)) as writer:
        writer.write({"__key__": "a", "txt": "1"})
    assert keys(tarmac.WebDataset(str(target))) == ["a"]


@follows("pass [array].")
def test_one_array_for_tenbin():
    array = np.ones(3, "f4")
    with hinted("pass [array].", EncodeFailed):
        compat.tenbin.encode_buffer(array)
    (decoded,) = compat.tenbin.decode_buffer(compat.tenbin.encode_buffer([array]))
    assert decoded.tolist() == [1, 1, 1]


class Numbers:
    """Yield numbers."""

    def __iter__(self):
        return iter(range(3))


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@follows("set nokill=True for simultaneous iterations.")
def test_simultaneous_iterations():
    loader = compat.multi.MultiLoader(Numbers(), 1)
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 3
    with hinted("set nokill=True for simultaneous iterations.", WorkerFailed):
        next(first)
    loader = compat.multi.MultiLoader(Numbers(), 1, nokill=True)
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 3
    assert len(list(first)) == 2


class Hungry:
    """Yield numbers; one of several workers is killed, as if memory ran out."""

    def __iter__(self):
        if current_worker_info().worker:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from range(3)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@follows("use fewer workers, if the system log says that memory ran out.")
def test_a_killed_worker():
    with hinted("use fewer workers, if the system log says that memory ran out.", WorkerFailed):
        list(compat.multi.MultiLoader(Hungry(), 2))
    assert len(list(compat.multi.MultiLoader(Hungry(), 1))) == 3


def wids_list(path, shard, **entry):
    path.write_text(json.dumps({"wids_version": 1, "shardlist": [{"url": shard, **entry}]}))
    return str(path)


@follows(
    "tarmac index SHARDS -o NEW.json writes a list with the number of samples.",
    "update the list: tarmac index SHARDS -o FILE.json",
)
@pytest.mark.parametrize("entry", [{}, {"nsamples": 3}])
def test_a_list_with_a_wrong_number_of_samples(shard, tmp_path, entry):
    hint = (
        "update the list: tarmac index SHARDS -o FILE.json"
        if entry
        else "tarmac index SHARDS -o NEW.json writes a list with the number of samples."
    )
    path = wids_list(tmp_path / "FILE.json", shard, **entry)
    with hinted(hint, BadManifest):
        wids.ShardListDataset(path)[0]
    path = path if entry else str(tmp_path / "NEW.json")
    assert run(["index", shard, "-o", path, "-j", "1"]) == 0
    dataset = wids.ShardListDataset(path)
    assert len(dataset) == 2
    assert dataset[1]["__key__"] == "b"
    dataset.close()


@follows("download or write the shard again.")
def test_a_shard_with_another_md5_sum(shard):
    content = Path(shard).read_bytes()
    md5sum = hashlib.md5(content).hexdigest()
    Path(shard).write_bytes(content.replace(b"x", b"z"))
    with hinted("download or write the shard again.", DigestMismatch):
        wids.IndexedTarSamples(path=shard, md5sum=md5sum)
    Path(shard).write_bytes(content)
    samples = wids.IndexedTarSamples(path=shard, md5sum=md5sum)
    assert len(samples) == 2
    samples.close()


@follows("map_tuple, or put map_dict before to_tuple.")
def test_map_dict_of_a_tuple(shard):
    with hinted("map_tuple, or put map_dict before to_tuple.", UsageError):
        list(tarmac.WebDataset(shard).to_tuple("cls").map_dict(cls=int))
    assert list(tarmac.WebDataset(shard).to_tuple("cls").map_tuple(int)) == [(1,), (2,)]
    assert list(tarmac.WebDataset(shard).map_dict(cls=int).to_tuple("cls")) == [(1,), (2,)]


@follows("put to_tuple before it.")
def test_map_tuple_of_a_dictionary(shard):
    with hinted("put to_tuple before it.", UsageError):
        list(tarmac.WebDataset(shard).map_tuple(int))
    assert list(tarmac.WebDataset(shard).to_tuple("cls").map_tuple(int)) == [(1,), (2,)]


@follows("`fields` names the fields that hold images.")
def test_a_crop_of_something_else():
    sample, rng = {"png": "text", "image": np.zeros((9, 8, 3), "u1")}, np.random.default_rng(0)
    with hinted("`fields` names the fields that hold images.", UsageError):
        tarmac.RandomResizedCrop(4)(sample, rng)
    cropped = tarmac.RandomResizedCrop(4, fields="image", mirror=0)(sample, rng)
    assert cropped["image"].shape == (4, 4, 3)
