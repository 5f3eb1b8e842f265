"""A table of several shards returns the samples of the shards."""

from __future__ import annotations

import os

import numpy as np
import pytest

from harness.shards import plain
from tarmac.errors import IndexStale
from tarmac.exact.fetch import Table
from tarmac.exact.indexed import LARGE, IndexedShard
from tarmac.indexing.build import IndexOptions, index_shard
from tarmac.indexing.sidecar import read_sidecar
from tarmac.storage import open_read


def indexed_shard(path, samples, **options):
    path.write_bytes(plain([(f"{key}.{field}", value) for key, field, value in samples]))
    sidecar = read_sidecar(index_shard(str(path), IndexOptions(digests=True)), str(path))
    return IndexedShard(str(path), sidecar, open_read(str(path)), **options)


def samples_of(begin, size, fields):
    return [
        (f"k{i:03d}", field, f"{field}{i}".encode()) for i in range(begin, begin + size) for field in fields
    ]


@pytest.mark.parametrize("fields", ["a", "ab", "abc", "abcd"])
@pytest.mark.parametrize("wanted", [None, {"a"}])
@pytest.mark.parametrize("views", [False, True])
def test_the_law(tmp_path, fields, wanted, views):
    sizes = (5, 1, 9)
    shards = [
        indexed_shard(tmp_path / f"{n}.tar", samples_of(n * 100, size, fields), fields=wanted, views=views)
        for n, size in enumerate(sizes)
    ]
    rows = [None, np.array([0], np.int32), np.array([7, 2, 2], np.int32)]
    expected = [
        shard.sample(row)
        for shard, some in zip(shards, rows, strict=True)
        for row in (range(len(shard)) if some is None else some.tolist())
    ]
    table = Table.of(shards, rows)
    numbers = np.random.default_rng(1).integers(0, len(expected), 40)
    assert table.samples(numbers) == [expected[number] for number in numbers]
    assert table.samples(np.array([], np.int64)) == []


def test_large_samples_are_read_from_the_file(tmp_path):
    large = [("x", "a", bytes(LARGE)), ("x", "b", b"1"), ("y", "a", bytes(range(256)) * 200), ("y", "b", b"")]
    shards = [
        indexed_shard(tmp_path / "0.tar", samples_of(0, 3, "ab")),
        indexed_shard(tmp_path / "1.tar", large),
    ]
    expected = [shard.sample(row) for shard in shards for row in range(len(shard))]
    table = Table.of(shards, [None, None])
    assert table.samples(np.array([4, 0, 3])) == [expected[4], expected[0], expected[3]]
    assert expected[3]["a"] == bytes(LARGE)

    os.truncate(tmp_path / "1.tar", 1000)
    with pytest.raises(IndexStale):
        table.samples(np.array([3]))


def test_shards_without_a_table(tmp_path):
    regular = indexed_shard(tmp_path / "0.tar", samples_of(0, 3, "ab"))
    others = {
        "other fields": indexed_shard(tmp_path / "1.tar", samples_of(0, 3, "ac")),
        "irregular": indexed_shard(tmp_path / "2.tar", samples_of(0, 3, "ab") + samples_of(3, 1, "a")),
        "verified": indexed_shard(tmp_path / "3.tar", samples_of(0, 3, "ab"), verify=True),
        "not mapped": indexed_shard(tmp_path / "4.tar", samples_of(0, 3, "ab"), mapped=False),
        "keys that are not ASCII": indexed_shard(tmp_path / "5.tar", [("é", "a", b"1"), ("é", "b", b"2")]),
    }
    for why, other in others.items():
        assert Table.of([regular, other], [None, None]) is None, why
    assert Table.of([], []) is None
    assert Table.of([regular, regular], [None, None]) is not None
