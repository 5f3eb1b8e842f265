"""A Dataset returns the samples that reading returns: by number, by key, in batches, local and remote."""

from __future__ import annotations

import os
import pickle
import random
import re
import shlex
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness import rounds
from harness.datasets import archives, dataset_of, items, write_shards
from harness.memory import peak, reset_peak
from harness.servers import nginx, required
from harness.shards import plain
from harness.work import calls
from tarmac.errors import (
    DecompressionBomb,
    DigestMismatch,
    IndexDamaged,
    IndexingError,
    IndexMissing,
    IndexStale,
    LimitExceeded,
    NotFound,
    TarmacError,
    TooManyShards,
    TrailingData,
    UsageError,
)
from tarmac.exact.dataset import Dataset
from tarmac.exact.fetch import FEW
from tarmac.exact.shardset import ShardSet
from tarmac.indexing.build import IndexOptions, manifest_of
from tarmac.indexing.manifest import Manifest, Shard, write_manifest
from tarmac.storage import Cache, StorageOptions

FAST = StorageOptions(backoff=0.001, max_backoff=0.005, retries=2, idle_timeout=60)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))


def check_law(ds, expected, rows):
    """Check that the dataset returns the expected samples in order, by number, by key, in batches."""
    wanted = items(expected)
    assert len(ds) == len(expected)
    assert items(ds) == wanted
    assert list(ds.keys()) == [sample["__key__"] for sample in expected]
    for row in rows:
        assert list(ds[row].items()) == wanted[row] == list(ds[row - len(ds)].items())
        assert ds.key(row) == expected[row]["__key__"]
        assert list(ds.get(expected[row]["__key__"]).items()) == wanted[row]
    for some in (rows, rows * (FEW + 1), [row - len(ds) for row in rows], np.array(rows, np.uint64)):
        numbers = np.asarray(some, np.int64).tolist()
        assert items(ds.batch(some)) == [wanted[number] for number in numbers]
        ds.close()  # again with closed shards, which have no table
        assert items(ds.batch(some)) == [wanted[number] for number in numbers]
        assert items(ds.__getitems__(some)) == [wanted[number] for number in numbers]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(archives(), min_size=1, max_size=3), st.data())
def test_the_law(tmp_path_factory, contents, data):
    folder = tmp_path_factory.mktemp("law")
    paths = [folder / f"{number}.tar" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    count = len(list(tarmac.read(paths)))
    keys = [sample["__key__"] for sample in tarmac.read(paths)]
    rows = data.draw(st.lists(st.integers(0, count - 1), max_size=4)) if count else []
    rows = [row for row in rows if keys.index(keys[row]) == row]  # get() returns the first of equal keys
    fields = data.draw(st.sampled_from([None, ["jpg", "CLS"], ["nothing"]]))
    options = data.draw(st.sampled_from([{}, {"in_memory": True}, {"verify": True}]))
    ds = Dataset(paths, fields=fields, **options)
    check_law(
        ds, list(tarmac.read(paths, fields=fields)) if fields is None else _limited(paths, fields), rows
    )


def _limited(paths, fields):
    """Return all samples with only some fields; reading would leave out those without any."""
    low = [field.lower() for field in fields]
    return [{k: v for k, v in s.items() if k[:2] == "__" or k in low} for s in tarmac.read(paths)]


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    root = tmp_path_factory.mktemp("web")
    with required(nginx(root)) as url:
        yield root, url


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("access", ["ranges", "cache", "memory", "verify"])
def test_the_law_over_http(web, tmp_path, access, index):
    root, url = web
    folder = root / f"{access}-{index}"
    folder.mkdir()
    write_shards(folder, [3, 0, 40, 1], index=index)
    options = {
        "cache": {"cache": Cache(str(tmp_path / "cache"))},
        "memory": {"in_memory": True},
        "verify": {"verify": True},
    }.get(access, {})
    urls = [f"{url}/{folder.name}/s{number:03d}.tar" for number in range(4)]
    ds = Dataset(urls, storage=FAST, **options)
    check_law(ds, list(tarmac.read(urls, storage=FAST)), [0, 43, 7, 7, 2, 3, 20])
    assert (len(list((tmp_path / "home/index").iterdir())) if not index else 4) == 4


def test_a_manifest_in_a_store(web):
    root, url = web
    folder = root / "with-manifest"
    folder.mkdir()
    paths = write_shards(folder, [2, 3])
    write_manifest(Dataset(paths)._parts[0].shards.manifest, str(folder / "m.json"))
    ds = Dataset(f"{url}/with-manifest/m.json", storage=FAST)
    assert [sample["cls"] for sample in ds] == [b"%d" % i for i in range(5)]


def test_a_directory_can_be_moved(tmp_path):
    (tmp_path / "old").mkdir()
    paths = write_shards(tmp_path / "old", [2, 3])
    write_manifest(Dataset(paths)._parts[0].shards.manifest, str(tmp_path / "old/m.json"))
    (tmp_path / "old").rename(tmp_path / "new")
    ds = Dataset(tmp_path / "new/m.json")
    assert [sample["cls"] for sample in ds] == [b"%d" % i for i in range(5)]
    assert ds[0]["__url__"] == str(tmp_path / "new/s000.tar")


@pytest.fixture(scope="module")
def fifty(tmp_path_factory):
    """Return fifty samples in shards of different lengths; `cls` is the number."""
    return manifest_of(
        write_shards(tmp_path_factory.mktemp("fifty"), [7, 0, 1, 20, 22]), IndexOptions(storage=FAST)
    )


@pytest.fixture
def numbers(fifty):
    ds = Dataset(fifty)
    yield ds
    ds.close()


def values(ds):
    return [int(sample["cls"]) for sample in ds]


SLICES = st.slices(50) | st.builds(slice, *[st.none() | st.integers(-120, 120)] * 2)
POSITIVE = SLICES.filter(lambda piece: piece.step is None or piece.step > 0)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.lists(POSITIVE, min_size=1, max_size=3), st.integers(0, 2))
def test_slices_behave_like_slices_of_lists(fifty, pieces, doubled):
    ds, expected = Dataset(fifty), list(range(50))
    if doubled:
        ds, expected = ds[:30] + ds[10::doubled], expected[:30] + expected[10::doubled]
    for piece in pieces:
        ds, expected = ds[piece], expected[piece]
        assert len(ds) == len(expected)
    assert values(ds) == expected
    assert values(ds.batch(range(len(ds)))) == expected
    assert [int(ds.key(i)) for i in range(len(ds))] == expected == [int(key) for key in ds.keys()]  # noqa: SIM118
    assert list(ds.lengths) == [n for n in ds.lengths if n]


def test_invalid_sample_numbers(numbers):
    for bad in (50, -51, 10**30):
        with pytest.raises(IndexError, match="50 samples"):
            numbers[bad]
        with pytest.raises(IndexError):
            numbers.key(bad)
    for bad in ([50], [0, -51], [2**40], np.array([2**64 - 1], np.uint64)):
        with pytest.raises(IndexError, match="50 samples"):
            numbers.batch(bad)
    for bad in ([0.5], ["a"], [True], [[1, 2]]):
        with pytest.raises(TypeError):
            numbers.batch(bad)
    with pytest.raises(TypeError):
        numbers[0.5]
    with pytest.raises(UsageError):
        numbers[::-1]
    with pytest.raises(IndexError, match="0 samples"):
        numbers[:0][0]
    assert numbers.batch([]) == [] == numbers.batch(np.array([])) == list(numbers[:0])
    assert int(numbers[np.int32(3)]["cls"]) == 3
    with pytest.raises(UsageError, match="`fields`"):
        Dataset("x.tar", fields="jpg")
    with pytest.raises(UsageError, match="`meta`"):
        Dataset("x.tar", meta="jpg.width")


def test_repr(tmp_path):
    urls = write_shards(tmp_path, [7, 1, 22])
    ds = Dataset(urls)
    assert repr(ds) == "<Dataset: 30 samples in 3 shards; fields cls, txt>"
    assert repr(ds[2:5].decode().map(values)) == (
        "<Dataset: 3 of 30 samples in 1 shard; fields cls, txt; steps Decode, Map(values)>"
    )
    assert repr(Dataset(urls, fields=["cls"])[:0]) == "<Dataset: 0 of 30 samples in 0 shards>"
    assert "<td>30</td>" in ds._repr_html_()
    assert "&lt;lambda&gt;" in ds.map(lambda sample: sample)._repr_html_()
    assert "samples in 1 shard" in repr(
        Dataset(Manifest([Shard("http://127.0.0.1:1/a.tar", 3, 1, None, "f")]))
    )


# Arguments that apply when shards are indexed


def test_meta_adds_columns_to_the_index(tmp_path):
    urls = write_shards(tmp_path, [3, 2])  # indexed without columns
    ds = Dataset(urls, meta=["cls"])
    assert [int(key) for key in ds.where("cls >= 3").keys()] == [3, 4]  # noqa: SIM118
    assert "columns cls" in repr(ds)
    assert len(Dataset(urls).where("cls >= 3")) == 2  # the column stays in the index
    manifest = manifest_of(write_shards(tmp_path, [3]))
    with pytest.raises(IndexingError, match=r"s000\.tar.*cls"):
        Dataset(manifest, meta=["cls"])[0]


def dotted(folder, index):
    with tarmac.TarWriter(folder / "a.tar", encoder=False, index=index) as writer:
        writer.write({"__key__": "a", "seg.png": b"1"})
    return folder / "a.tar"


def test_split_name(tmp_path):
    ds = Dataset(dotted(tmp_path, index=False), split_name=tarmac.last_dot)
    assert list(ds[0]) == ["__key__", "__url__", "png"]
    assert ds.key(0) == "a.seg"
    assert Dataset(tmp_path / "a.tar", split_name=tarmac.last_dot).key(0) == "a.seg"
    with pytest.raises(IndexingError, match=r"a\.tar.*`split_name`"):
        Dataset(tmp_path / "a.tar", split_name=tarmac.first_dot).key(0)
    ds.close()
    assert Dataset(dotted(tmp_path, index=True)).key(0) == "a"
    with pytest.raises(IndexingError, match=r"a\.tar.*`split_name`"):
        Dataset(tmp_path / "a.tar", split_name=tarmac.last_dot)[0]


def test_tar(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain([("a.x", b"1")]) + plain([("b.x", b"2")]))
    with pytest.raises(TrailingData, match=r"a\.tar"):
        Dataset(path)
    joined = Dataset(path, tar=tarmac.TarOptions(concatenated=True))
    assert [sample["x"] for sample in joined] == [b"1", b"2"]


def test_limits(tmp_path):
    with tarmac.TarWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "a", "png": np.zeros((20, 20, 3), np.uint8)})
    with pytest.raises(DecompressionBomb, match='sample "a"'):
        Dataset(tmp_path / "a.tar", limits=tarmac.Limits(pixels=399)).decode("rgb8")[0]
    for limits in (None, tarmac.Limits(pixels=400)):
        assert Dataset(tmp_path / "a.tar", limits=limits).decode("rgb8")[0]["png"].shape == (20, 20, 3)
    (tmp_path / "a.tar.arrow").unlink()
    with pytest.raises(LimitExceeded, match=r"a\.tar"):
        Dataset(tmp_path / "a.tar", verify=True, limits=tarmac.Limits(member_bytes=10))
    with pytest.raises(TooManyShards):
        Dataset(str(tmp_path / "{a..z}.tar"), limits=tarmac.Limits(shards=3))


def test_progress(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tarmac.progress.DELAY", -1)
    urls = write_shards(tmp_path, [1, 1], index=False)
    Dataset(urls, progress=False)
    assert capsys.readouterr().err == ""
    Dataset(urls, progress=True)
    assert capsys.readouterr().err


def test_by_key(numbers):
    assert numbers.get("00042")["cls"] == b"42"
    assert numbers[40:].map(lambda sample: int(sample["cls"])).get("00042") == 42
    for ds, key in (
        (numbers, "absent"),
        (numbers, "\udc80"),
        (numbers[:40], "00042"),
        (numbers[::2], "00041"),
    ):
        with pytest.raises(KeyError, match=re.escape(repr(key))):
            ds.get(key)
        with pytest.raises(KeyError, match=re.escape(repr(key))):
            ds[key]
        assert ds.get(key, None) is None
        assert key not in ds
    assert numbers["00042"] == numbers.get("00042", None) == numbers[42]
    assert numbers.map(lambda sample: int(sample["cls"]))["00042"] == 42


def test_keys_are_looked_up_in_the_index(numbers, monkeypatch):
    monkeypatch.setattr(ShardSet, "open", None)  # no shard is opened
    assert "00042" in numbers
    assert "00042" not in numbers[:42]
    with pytest.raises(TypeError, match="key"):
        42 in numbers  # noqa: B015


def test_several_numbers_are_a_list(numbers):
    keys = ["00003", "00049", "00003"]
    for some in ([3, 49, 3], (3, -1, 3), np.array([3, 49, 3]), torch.tensor([3, 49, 3])):
        assert [sample["__key__"] for sample in numbers[some]] == keys
    assert numbers[[]] == []
    assert numbers[np.int64(3)] == numbers[torch.tensor(3)] == numbers[3]
    for bad in ([0.5], 0.5, None, b"00042", ["00042"]):
        with pytest.raises(TypeError, match="integers"):
            numbers[bad]


def test_adding(numbers):
    double = numbers[5:7].map(lambda sample: 0) + numbers[1:3]
    assert double.batch([0, 1]) == [0, 0]
    assert values(double[2:]) == [1, 2]
    assert len((numbers + numbers).lengths) == 10
    with pytest.raises(TypeError):
        numbers + [1]  # noqa: RUF005


def test_fingerprints(numbers, tmp_path):
    again = Dataset(numbers._parts[0].shards.manifest)
    assert numbers.fingerprint == again.fingerprint
    assert again.map(values).fingerprint == again.fingerprint  # steps do not count
    others = [again[1:], again[:-1], again[::2], again + again, again.where("key > '00003'")]
    assert len({ds.fingerprint for ds in [numbers, *others]}) == 6
    assert again[:].fingerprint == again.where("key >= '0'").fingerprint == numbers.fingerprint
    urls = write_shards(tmp_path, [7, 0, 1, 20, 22])
    assert Dataset(urls).fingerprint == numbers.fingerprint  # wherever they are


def test_shards_in_use_share_one_table(tmp_path):
    def held(dataset):
        return dataset._fetcher._table.holds(np.arange(len(dataset.lengths))).tolist()

    shards = write_shards(tmp_path, [9, 9, 9])
    ds = Dataset(shards)
    wanted = items(ds)
    ds.close()
    assert ds.batch([3])[0] == ds[3]
    assert held(ds) == [True, False, False]
    assert items(ds) == wanted
    assert [sample["__key__"] for sample in ds.batch([0, -1])] == [ds.key(0), ds.key(-1)]
    assert held(ds) == [True, False, True]
    assert pickle.loads(pickle.dumps(ds))._fetcher._table is None
    sharing = ds.map(dict)
    assert items(sharing.batch([2])) == wanted[2:3]
    assert held(sharing) == [True, False, False]
    ds.close()  # datasets that share its shards release them, too
    assert sharing._fetcher._table is None
    assert items(sharing.batch([2, 20])) == [wanted[2], wanted[20]]
    assert items(ds) == wanted
    pair = ds.map(dict) + ds
    assert items(pair.batch([0, len(ds)])) == [wanted[0]] * 2
    assert held(pair) == [True, False, False, True, False, False]
    ds.close()
    assert ds._fetcher._table is None


def test_pickles_are_small_and_work(numbers):
    fresh = len(pickle.dumps(numbers))
    assert values(numbers.batch([0, 49])) == [0, 49]
    assert len(pickle.dumps(numbers)) == fresh  # caches are not pickled
    copy = pickle.loads(pickle.dumps(numbers))
    manifest = len(pickle.dumps(numbers._parts[0].shards.manifest))
    assert len(pickle.dumps(numbers)) < manifest + 3_000
    assert values(copy) == values(numbers)
    assert values(pickle.loads(pickle.dumps(numbers[3:40:3]))) == list(range(3, 40, 3))


def keys(batch):
    return [sample["__key__"] for sample in batch]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_is_a_map_style_dataset_for_torch(numbers, method):
    from torch.utils.data import DataLoader

    values(numbers)  # the parent has shards open
    loader = DataLoader(
        numbers,
        batch_size=8,
        num_workers=2 if method == "fork" else 1,  # a fresh interpreter imports torch first
        collate_fn=keys,
        multiprocessing_context=method,
    )
    assert [key for batch in loader for key in batch] == list(numbers.keys())


def test_threads_share_a_dataset(tmp_path):
    urls = write_shards(tmp_path, [5] * 12)
    ds = dataset_of(urls, open_shards=2)
    failures = []

    def hammer(seed):
        rng = random.Random(seed)
        for _ in range(rounds(25)):
            rows = [rng.randrange(60) for _ in range(rng.choice([1, 3, 30]))]
            if values(ds.batch(rows)) != rows or int(ds[rows[0]]["cls"]) != rows[0]:
                failures.append(rows)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hammer, range(8)))
    assert not failures
    assert threading.active_count() < 20


# Damaged files


@pytest.fixture
def pair(tmp_path):
    urls = write_shards(tmp_path, [2, 2])
    write_manifest(Dataset(urls)._parts[0].shards.manifest, str(tmp_path / "m.json"))
    return tmp_path


def test_stale_shards(pair):
    shard = pair / "s001.tar"
    content = shard.read_bytes()
    shard.write_bytes(content + bytes(512))
    with pytest.raises(IndexStale, match=r"s001\.tar"):
        list(Dataset(pair / "m.json"))
    shard.write_bytes(content.replace(b"00003.txt", b"0000x.txt"))
    with pytest.raises(IndexStale, match=r"s001\.tar"):
        Dataset(pair / "m.json")[3]
    assert Dataset(pair / "m.json")[1]["cls"] == b"1"  # the other shard is fine
    shard.write_bytes(plain())
    assert list(Dataset([shard])) == list(tarmac.read(shard))  # without a manifest it is indexed again


def test_missing_files(pair):
    (pair / "s001.tar.arrow").unlink()
    with pytest.raises(IndexMissing, match=r"s001\.tar\.arrow: .*s001\.tar\b"):
        Dataset(pair / "m.json")[3]
    (pair / "s000.tar").unlink()
    with pytest.raises(NotFound, match=r"s000\.tar"):
        Dataset(pair / "m.json")[0]
    assert list(Dataset(pair / "m.json")[:2].keys()) == ["00000", "00001"]
    with pytest.raises(NotFound):
        Dataset(pair / "absent.json")
    with pytest.raises(NotFound):
        Dataset(pair / "absent.tar")


def test_foreign_indexes(pair):
    shutil.copy(pair / "s000.tar.arrow", pair / "s001.tar.arrow")
    with pytest.raises(IndexDamaged, match=r"s001\.tar"):
        Dataset(pair / "m.json")[3]
    wrong = Manifest([Shard(str(pair / "s000.tar"), 3)])
    with pytest.raises(IndexDamaged, match=r"s000\.tar.*3.*2"):
        Dataset(wrong)[0]


def test_digests(pair):
    shard = pair / "s001.tar"
    times = shard.stat()
    content = bytearray(shard.read_bytes())
    content[512] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    ds = Dataset(pair / "m.json", verify=True)
    assert ds[3]["cls"] == b"3"
    for read in (lambda: ds[2], lambda: ds.batch([2]), lambda: list(ds), lambda: ds.get("00002")):
        with pytest.raises(DigestMismatch, match='sample "00002"'):
            read()
    assert len(list(Dataset(pair / "m.json"))) == 4  # only `verify` compares digests
    assert len(list(Dataset(pair / "m.json", verify=True, fields=["txt"]))) == 4


def test_verify_builds_missing_digests(tmp_path):
    urls = write_shards(tmp_path, [2], index=False)
    plain_index = Dataset(urls)
    assert len(list(plain_index)) == 2
    with pytest.raises(IndexingError, match="digests"):
        Dataset(plain_index._parts[0].shards.manifest, verify=True)[0]
    assert len(list(Dataset(urls, verify=True))) == 2
    assert len(list(Dataset(Manifest([Shard(urls[0], 2)]), verify=True))) == 2


def test_compressed_and_damaged_shards(tmp_path):
    with tarmac.TarWriter(tmp_path / "a.tar.gz") as writer:
        writer.write({"__key__": "a", "x": b""})
    (tmp_path / "b.tar").write_bytes(plain()[:2000])
    for name in ("a.tar.gz", "b.tar"):
        with pytest.raises(TarmacError, match=name):
            Dataset(tmp_path / name)
    assert not list(tmp_path.glob("*.arrow"))


@pytest.mark.parametrize("name", ["a.tar.gz", "a b.tgz", "c.d.tar.gz"])
def test_the_hint_for_compressed_shards_works(tmp_path, name):
    with tarmac.TarWriter(tmp_path / "plain.tar.gz") as writer:
        writer.write({"__key__": "a", "x": b""})
    os.rename(tmp_path / "plain.tar.gz", tmp_path / name)
    with pytest.raises(IndexingError) as caught:
        Dataset(tmp_path / name)
    program, verb, source, _, output = shlex.split(caught.value.hint)
    assert (program, verb, source) == ("tarmac", "copy", str(tmp_path / name))
    tarmac.copy(source, output)
    assert Dataset(output)["a"]["x"] == b""
    os.rename(tmp_path / name, tmp_path / "e.tar")
    with pytest.raises(IndexingError, match=r"rename it to .*/e\.tar\.gz"):
        Dataset(tmp_path / "e.tar")


def test_a_hundred_thousand_shards(tmp_path):
    shards = [
        Shard(f"{tmp_path}/train-{i:06d}.tar", 10_000, 10**9 + i, None, f"{i:032x}") for i in range(100_000)
    ]
    write_manifest(Manifest(shards), str(tmp_path / "m.json"))
    baseline = reset_peak()
    ds = Dataset(tmp_path / "m.json")
    assert len(ds) == 10**9
    assert peak() - baseline < 300 << 20
    assert calls(lambda: Dataset(tmp_path / "m.json")) < 20 * len(shards)
    assert calls(lambda: ds._order(1).at(0, np.arange(1000) * 999_983)) < len(shards)
    assert calls(lambda: ds[5:-5]) < 10 * len(shards)
    assert len(ds[5:-5]) == 10**9 - 10
