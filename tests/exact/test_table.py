"""A table returns the samples of the shards that it holds, and a dataset reads the same with and without it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tarmac
from harness.shards import plain
from tarmac.errors import IndexStale
from tarmac.exact.indexed import LARGE, IndexedShard
from tarmac.exact.table import PAYS, Table
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


def lengths(shards, rows):
    return np.array(
        [len(shard) if some is None else len(some) for shard, some in zip(shards, rows, strict=True)]
    )


def table_of(shards, rows):
    table = Table(lengths(shards, rows))
    for number in np.random.default_rng(2).permutation(len(shards)).tolist():
        assert table.add(number, shards[number], rows[number])
    return table


def samples(table, shards, rows, numbers):
    owners = np.searchsorted(np.cumsum(lengths(shards, rows)), numbers, side="right")
    assert table.holds(owners).all()
    return table.samples(owners, np.asarray(numbers))


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
    table = table_of(shards, rows)
    numbers = np.random.default_rng(1).integers(0, len(expected), 40)
    assert samples(table, shards, rows, numbers) == [expected[number] for number in numbers]


def test_large_samples_are_read_from_the_file(tmp_path):
    large = [("x", "a", bytes(LARGE)), ("x", "b", b"1"), ("y", "a", bytes(range(256)) * 200), ("y", "b", b"")]
    shards = [
        indexed_shard(tmp_path / "0.tar", samples_of(0, 3, "ab")),
        indexed_shard(tmp_path / "1.tar", large),
    ]
    expected = [shard.sample(row) for shard in shards for row in range(len(shard))]
    rows = [None, None]
    table = table_of(shards, rows)
    assert samples(table, shards, rows, [4, 0, 3]) == [expected[4], expected[0], expected[3]]
    assert expected[3]["a"] == bytes(LARGE)

    os.truncate(tmp_path / "1.tar", 1000)
    with pytest.raises(IndexStale):
        samples(table, shards, rows, [3])


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
        table = table_of([regular, other], [None, None])
        assert table.holds(np.array([0, 1])).sum() == 1, why
    assert table_of([regular, regular], [None, None]).holds(np.array([0, 1])).all()


def test_a_full_table_refuses_shards(tmp_path, monkeypatch):
    monkeypatch.setattr("tarmac.exact.table.ROWS", 10)
    shards = [
        indexed_shard(tmp_path / f"{n}.tar", samples_of(0, size, "a")) for n, size in enumerate((6, 6, 11))
    ]
    table = Table(np.array([6, 6, 11]))
    assert table.add(0, shards[0], None)
    assert not table.add(1, shards[1], None)
    assert table.add(2, shards[2], None)  # which fits into none
    assert table.holds(np.array([0, 1, 2])).tolist() == [True, False, False]
    assert table.due(np.array([1] * 6)) == [1]
    assert table.due(np.array([0, 2] * 6)) == []


def test_a_shard_enters_after_a_use_for_each_few_samples():
    table = Table(np.array([10 * PAYS, 1]))
    assert [table.due(np.array([0, 0, 0])) for _ in range(4)] == [[], [], [], [0]]
    assert table.due(np.array([1])) == [1]


@pytest.mark.parametrize("capacity", [1 << 21, 40, 7])
def test_a_dataset_reads_the_same_from_a_table(tmp_path, monkeypatch, capacity):
    """While shards enter, after they entered, and when the table is full again and again."""
    monkeypatch.setattr("tarmac.exact.table.ROWS", capacity)
    urls = []
    for number, fields in enumerate(["ab", "ab", "ab", "a", "ab", "ab"]):
        url = tmp_path / f"{number}.tar"
        url.write_bytes(
            plain([(f"{n}.{field}", f"{number}{field}{n}".encode()) for n in range(20) for field in fields])
        )
        urls.append(str(url))
    dataset = tarmac.Dataset(urls)
    changed = dataset[50:].map(dict.copy) + dataset[:30]
    for some in (dataset, dataset[:70], dataset[5:70:3], changed):
        expected = [some[number] for number in range(len(some))]
        rng = np.random.default_rng(3)
        for _ in range(60):
            numbers = rng.integers(0, len(some), 16)
            assert some.__getitems__(numbers.tolist()) == [expected[number] for number in numbers]
        some.close()
        assert some.__getitems__([1, 0]) == expected[1::-1]


def test_threads_share_a_table_that_is_often_full(tmp_path, monkeypatch):
    monkeypatch.setattr("tarmac.exact.table.ROWS", 50)
    for number in range(8):
        (tmp_path / f"{number}.tar").write_bytes(
            plain([(f"{n}.a", b"%d %d" % (number, n)) for n in range(20)])
        )
    dataset = tarmac.Dataset([f"{tmp_path}/{number}.tar" for number in range(8)])
    expected = [dataset[number] for number in range(len(dataset))]

    def read(seed):
        rng = np.random.default_rng(seed)
        for _ in range(100):
            numbers = rng.integers(0, len(dataset), 16)
            assert dataset.__getitems__(numbers.tolist()) == [expected[number] for number in numbers]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))
    dataset.close()
