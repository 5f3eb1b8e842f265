"""Sidecars: content is read back, and a damaged one is never accepted."""

from __future__ import annotations

import json
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.damage import bit_flips, cuts
from harness.shards import plain
from tarmac.errors import IndexDamaged, IndexingError, IndexMissing, IndexStale, TarmacError
from tarmac.exact.indexed import IndexedShard
from tarmac.indexing import sidecar as module
from tarmac.indexing.entries import Entries
from tarmac.indexing.sidecar import make_sidecar, open_sidecar, read_sidecar, sidecar_url, write_sidecar
from tarmac.storage import ObjectInfo, Source, StorageOptions, stat

INFO = ObjectInfo(10_000, "5f")
KEYS = ["a", "b/c", "é"]


def entries_of(keys=KEYS, fields=("cls", "jpg")):
    entries = Entries()
    for number, key in enumerate(keys):
        entries.add(key, {field: (512 * number + at, 3, 7 + at) for at, field in enumerate(fields)})
    return entries


def written(path, entries, columns=None, info=INFO, digests=True):
    content = make_sidecar(entries, info, columns or {}, digests=digests)
    write_sidecar(str(path), content)
    return content


@pytest.mark.parametrize(
    ("shard", "name"),
    [
        ("a.tar", "a.tar.arrow"),
        ("what?.tar", "what?.tar.arrow"),
        ("s3://b/a.tar", "s3://b/a.tar.arrow"),
        ("https://h/a.tar?sig=1", "https://h/a.tar.arrow?sig=1"),
        ("https://h/a.tar#x", "https://h/a.tar.arrow#x"),
        ("https://h/a.tar?sig=1#x?y", "https://h/a.tar.arrow?sig=1#x?y"),
        ("s3://b/a#1.tar", "s3://b/a#1.tar.arrow"),
    ],
)
def test_names(shard, name):
    assert sidecar_url(shard) == name


@pytest.mark.parametrize("keys", [KEYS, ["one"], [], ["a", "b\udcff"]])
def test_content_is_read_back(tmp_path, keys):
    written(tmp_path / "x", entries_of(keys), {"w": pa.array(list(range(len(keys))), pa.int64())})
    results = open_sidecar(str(tmp_path / "x"))
    assert len(results) == len(keys)
    assert results.keys() == keys
    assert [results.key(row) for row in range(len(keys))] == keys
    assert results.keys(np.arange(len(keys))[::-1].astype(np.int64)) == keys[::-1]
    assert results.keys(slice(0, len(keys) // 2)) == keys[: len(keys) // 2]
    assert results.metadata == ["w"]
    assert results.column("w").to_pylist() == list(range(len(keys)))
    assert results.facts.layout == (["cls", "jpg"] if keys else None)
    assert results.fields == (["cls", "jpg"] if keys else [])
    assert results.fingerprint() == results.facts.fingerprint
    assert results.has("jpg").tolist() == [True] * len(keys)
    assert results.has("nothing").tolist() == [False] * len(keys)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(st.text(min_size=1) | st.just("\udcfe"), unique=True, max_size=15), st.text())
def test_finding_keys(keys, other):
    results = read_sidecar(make_sidecar(entries_of(keys), INFO, {}, digests=False), "x")
    for _ in range(2):  # first by scanning, then with a table
        for key in [*keys, other] * module._SCANS:
            assert list(results.find(key)) == [row for row, each in enumerate(keys) if each == key]
            if results._rows is not None:
                break


def test_fields_differ(tmp_path):
    entries = Entries()
    entries.add("a", {"jpg": (0, 1, 0)})
    entries.add("b", {"cls": (5, 1, 0), "jpg": (9, 1, 0)})
    entries.add("c", {"cls": (20, 1, 0)})
    written(tmp_path / "x", entries)
    results = open_sidecar(str(tmp_path / "x"))
    assert results.has("jpg").tolist() == [True, True, False]
    assert results.has("cls").tolist() == [False, True, True]
    assert results.facts.layout is None


def test_the_fingerprint_covers_offsets_and_names_only(tmp_path):
    def fingerprint(entries, **options):
        written(tmp_path / "x", entries, **options)
        return open_sidecar(str(tmp_path / "x")).facts.fingerprint

    first = fingerprint(entries_of())
    assert fingerprint(entries_of(), digests=False) == first
    assert fingerprint(entries_of(), info=ObjectInfo(20_000, "other")) == first
    assert fingerprint(entries_of(), columns={"w": pa.array([1, 2, 3])}) == first
    assert fingerprint(entries_of(["a", "b/c", "e"])) != first
    assert fingerprint(entries_of(fields=("cls", "png"))) != first
    assert fingerprint(entries_of(["ab", "/c", "é"])) != first


def test_digests_only_if_they_were_computed(tmp_path):
    written(tmp_path / "x", entries_of(), digests=False)
    assert open_sidecar(str(tmp_path / "x")).digests is None
    written(tmp_path / "x", entries_of())
    assert open_sidecar(str(tmp_path / "x")).digests.tolist() == [7, 8] * 3


def test_stale(tmp_path):
    written(tmp_path / "x", entries_of())
    results = open_sidecar(str(tmp_path / "x"))
    results.check_shard(INFO, "a.tar")
    # Without a version only the size is compared; the names of members remain to be compared.
    assert not results.facts.check_shard(ObjectInfo(10_000, None), "a.tar", StorageOptions())
    # Without sampled digests, as in indexes of earlier versions, a copy in a store is recognised by its size.
    results.check_shard(ObjectInfo(10_000, '"etag"'), "s3://b/a.tar")
    with pytest.raises(IndexStale, match=r"^a\.tar: .*\b10000 .*\b9999\b"):
        results.check_shard(ObjectInfo(9_999, "5f"), "a.tar")
    with pytest.raises(IndexStale, match=r"^a\.tar: ") as caught:
        results.check_shard(ObjectInfo(10_000, "60"), "a.tar")
    assert "tarmac index" in str(caught.value)


def test_missing_and_invalid_files(tmp_path):
    with pytest.raises(IndexMissing, match="absent"):
        open_sidecar(str(tmp_path / "absent"))
    with pytest.raises(IndexMissing):
        open_sidecar(str(tmp_path / "absent" / "x"))
    for content in (b"", b"x", plain(), b"ARROW1\0\0" + bytes(100) + b"ARROW1", json.dumps({}).encode()):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(IndexDamaged):
            open_sidecar(str(tmp_path / "x"))
    with pytest.raises(IndexDamaged):
        open_sidecar(str(tmp_path))


def rewritten(path, **changes):
    """Change the facts in a sidecar."""
    with pa.memory_map(str(path)) as source:
        file = pa.ipc.open_file(source)
        batch, facts = file.get_batch(0), json.loads(file.schema.metadata[b"tarmac"])
    schema = batch.schema.with_metadata({b"tarmac": json.dumps(facts | changes)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as file:
        file.write_batch(batch.replace_schema_metadata(schema.metadata))
    path.write_bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"version": None},
        {"samples": 4},
        {"samples": "x"},
        {"shard_size": 1024},  # too small for its members
        {"shard_size": -1},
        {"fingerprint": "0" * 32},
        {"layout": ["jpg", "cls"]},
        {"layout": ["cls"]},
        {"layout": ["cls", "png"]},
        {"layout": []},
        {"layout": 3},
        {"columns": 3},
    ],
)
def test_contradicting_facts(tmp_path, changes):
    written(tmp_path / "x", entries_of())
    rewritten(tmp_path / "x")
    open_sidecar(str(tmp_path / "x"))
    rewritten(tmp_path / "x", **changes)
    with pytest.raises(IndexDamaged):
        open_sidecar(str(tmp_path / "x"))


@pytest.mark.parametrize(
    "extent", [(-1, 3, 0), (9_999, 2, 0), (1 << 62, 1 << 62, 0), ((1 << 63) - 1, 2, 0), (3, -1, 0)]
)
def test_extents_outside_the_shard(tmp_path, extent):
    entries = Entries()
    entries.add("a", {"jpg": extent})
    written(tmp_path / "x", entries)
    with pytest.raises(IndexDamaged):
        open_sidecar(str(tmp_path / "x"))


def test_a_newer_version_is_named(tmp_path):
    written(tmp_path / "x", entries_of())
    rewritten(tmp_path / "x", version=2)
    with pytest.raises(IndexDamaged, match="version 2") as caught:
        open_sidecar(str(tmp_path / "x"))
    assert "newer" in str(caught.value)


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(TarmacError):
        write_sidecar(str(tmp_path / "no" / "x"), b"")
    assert os.listdir(tmp_path) == []


class Held(Source):
    def __init__(self, data):
        self.data = data

    def content(self):
        return self.data


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """A small shard with its index, and a function that reads it with an index given as bytes."""
    folder = tmp_path_factory.mktemp("indexed")
    shard = folder / "a.tar"
    shard.write_bytes(plain([("a.cls", b"1"), ("a.txt", b"one"), ("b.cls", b"22"), ("b.txt", b"two")]))
    entries = Entries()
    entries.add("a", {"cls": (512, 1, 0), "txt": (1536, 3, 0)})
    entries.add("b", {"cls": (2560, 2, 0), "txt": (3584, 3, 0)})
    info = stat(str(shard))
    columns = {"width": pa.array([640, 480], pa.int64())}
    good = make_sidecar(entries, info, columns, digests=True)
    held = Held(shard.read_bytes())

    def read(content):
        sidecar = read_sidecar(content, "x")
        sidecar.check_shard(info, str(shard))
        results = IndexedShard(str(shard), sidecar, held)
        samples = results.samples(np.arange(len(results)))
        assert samples == [results.sample(row) for row in range(len(results))]
        width = sidecar.column("width").to_pylist() if "width" in sidecar.metadata else None
        return samples, width

    assert [sample["txt"] for sample in read(good)[0]] == [b"one", b"two"]
    return good, read


def outcomes(indexed, damaged):
    good, read = indexed
    expected, tally = read(good), {"error": 0, "same": 0, "no such column": 0}
    for case in damaged:
        try:
            samples, width = read(case.data)
        except IndexingError:
            tally["error"] += 1
            continue
        assert samples == expected[0], case.how
        # The name of a column may change; conditions then do not find the column.
        assert width in (expected[1], None), case.how
        tally["same" if width else "no such column"] += 1
    return tally


def test_cut_at_every_byte(indexed):
    tally = outcomes(indexed, cuts(indexed[0]))
    assert tally["error"] == len(indexed[0])


def test_every_bit_flipped(indexed):
    """Each bit gives an error or the right samples and metadata.

    Without effect are padding, the first of the two copies of the schema, and the digests, which `verify`
    compares with the bytes.
    """
    tally = outcomes(indexed, bit_flips(indexed[0], [(0, len(indexed[0]))]))
    assert sum(tally.values()) == 8 * len(indexed[0])
    assert tally["error"] > 3_000
