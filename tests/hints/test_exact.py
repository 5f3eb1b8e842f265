"""Follow the hints of indexed datasets."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import tarmac
from harness.commands import run
from harness.datasets import write_shards
from harness.hints import follows, hinted
from harness.shards import plain
from tarmac.errors import IndexingError, IndexMissing, TransformFailed, UsageError


@pytest.fixture
def dataset(tmp_path):
    """Six samples in two shards: `cls` is the number, `txt` some text."""
    dataset = tarmac.Dataset(write_shards(tmp_path, [3, 3]))
    yield dataset
    dataset.close()


def numbers(dataset):
    return [int(sample["cls"]) for sample in dataset]


@follows("where() takes conditions.")
def test_a_condition_for_filter(dataset):
    with hinted("where() takes conditions.", UsageError):
        dataset.filter("key > '00003'")
    assert numbers(dataset.where("key > '00003'")) == [4, 5]


@follows("ds.keys() yields the keys.")
def test_unknown_keys(dataset):
    with hinted("ds.keys() yields the keys.", UsageError):
        dataset.select_keys(["5"])
    key = list(dataset.keys())[5]
    assert numbers(dataset.select_keys([key])) == [5]


@follows("batch(indices) takes any order.")
def test_a_negative_step(dataset):
    with hinted("batch(indices) takes any order.", UsageError):
        dataset[::-1]
    assert numbers(dataset.batch(range(5, -1, -1))) == [5, 4, 3, 2, 1, 0]


@follows("take_per_epoch() and repeat() set counts.")
def test_a_count_without_weights(dataset):
    with hinted("take_per_epoch() and repeat() set counts.", UsageError):
        tarmac.Mix([dataset, dataset], samples=10)
    assert len(tarmac.Mix([dataset.take_per_epoch(4), dataset.repeat(2)])) == 16


NONE = "where() excludes samples; Loader(max_bad_samples=n) replaces those that raise."


@follows("where() excludes samples; Loader(max_bad_samples=n) replaces those that raise.")
def test_a_step_that_returns_none(dataset):
    def odd_or_none(sample):
        return sample["cls"] if int(sample["cls"]) % 2 else None

    with hinted(NONE, TransformFailed):
        list(dataset.map(odd_or_none))
    odd = dataset.where("key = '00001' or key = '00003' or key = '00005'")
    assert list(odd.map(odd_or_none)) == [b"1", b"3", b"5"]
    with tarmac.Loader(dataset.map(odd_or_none), 6, max_bad_samples=3) as loader:
        assert {value for batch in loader for value in batch} <= {b"1", b"3", b"5"}


@pytest.fixture
def indexed(tmp_path):
    """A shard with dots in its keys, and its manifest."""
    shard, manifest = tmp_path / "x.tar", tmp_path / "manifest.json"
    shard.write_bytes(plain([("a.0.cls", b"0"), ("a.1.cls", b"1")]))
    tarmac.index(shard, output=str(manifest), meta=["1.cls"], jobs=1)
    return str(shard), str(manifest)


@follows("tarmac index --digests SHARDS")
def test_an_index_without_digests(indexed):
    shard, manifest = indexed
    with hinted("tarmac index --digests SHARDS", IndexingError):
        tarmac.Dataset(manifest, verify=True)[0]
    assert run(["index", "--digests", shard, "-j", "1"]) == 0
    assert len(list(tarmac.Dataset(manifest, verify=True))) == 1


@follows("tarmac index SHARDS --meta {}")
def test_an_index_without_columns(indexed):
    shard, manifest = indexed
    columns = ["0.cls", "1.cls"]
    with hinted("tarmac index SHARDS --meta {}", IndexingError) as caught:
        tarmac.Dataset(manifest, meta=columns)[0]
    assert run([*caught.value.hint.replace("SHARDS", shard).split()[1:], "-j", "1"]) == 0
    assert len(tarmac.Dataset(manifest, meta=columns)) == 1


ANOTHER_RULE = (
    "leave `split_name` out, or remove the index, SHARD.arrow, and run "
    "tarmac index SHARDS -o manifest.json with this `split_name`."
)


@follows(
    "leave `split_name` out, or remove the index, SHARD.arrow, and run "
    "tarmac index SHARDS -o manifest.json with this `split_name`."
)
def test_an_index_with_another_split_name(indexed):
    shard, manifest = indexed
    with hinted(ANOTHER_RULE, IndexingError):
        tarmac.Dataset(manifest, split_name=tarmac.last_dot)[0]
    assert list(tarmac.Dataset(manifest).keys()) == ["a"]
    for again in (
        lambda: tarmac.index(shard, output=manifest, split_name=tarmac.last_dot, jobs=1),
        lambda: run(["index", shard, "-o", manifest, "--split-name", "last-dot", "-j", "1"]),
    ):
        Path(f"{shard}.arrow").unlink()
        again()
        assert numbers(tarmac.Dataset(manifest, split_name=tarmac.last_dot)) == [0, 1]


@follows("tarmac index {}, or copy the index together with its shard.")
def test_an_index_that_was_not_copied(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    (shard,) = write_shards(folder, [3])
    manifest = folder / "all.json"
    tarmac.index(shard, output=str(manifest), jobs=1)
    index = Path(f"{shard}.arrow")
    content = index.read_bytes()
    index.unlink()
    with hinted("tarmac index {}, or copy the index together with its shard.", IndexMissing) as caught:
        tarmac.Dataset(manifest)[0]
    index.write_bytes(content)
    assert numbers(tarmac.Dataset(manifest)) == [0, 1, 2]
    index.unlink()
    assert run([*shlex.split(caught.value.hint.partition(", or")[0])[1:], "-j", "1"]) == 0
    assert numbers(tarmac.Dataset(manifest)) == [0, 1, 2]
