"""Reading at the offsets of an index: any rows in any order, mapped or by ranges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness.datasets import archives, items
from harness.faultserver import Action, FaultServer
from harness.memory import peak, reset_peak
from harness.shards import plain
from tarmac.errors import DigestMismatch, IndexingError, IndexStale, TransferError
from tarmac.exact import indexed
from tarmac.exact.indexed import IndexedShard, coalesce
from tarmac.indexing.build import IndexOptions, index_shard
from tarmac.indexing.sidecar import read_sidecar
from tarmac.storage import Source, StorageOptions, open_read

FAST = StorageOptions(backoff=0.001, max_backoff=0.005, retries=2, idle_timeout=60)


def index_of(url):
    return read_sidecar(index_shard(url, IndexOptions(digests=True)), url)


class InMemory(Source):
    closed = False

    def __init__(self, data):
        self.data = data

    def content(self):
        return self.data

    def close(self):
        self.closed = True


@settings(max_examples=60, derandomize=True, deadline=None)
@given(archives(), st.data())
def test_any_rows_in_any_order(tmp_path_factory, data, draw):
    path = tmp_path_factory.mktemp("law") / "a.tar"
    path.write_bytes(data)
    expected, sidecar = list(tarmac.read(path)), index_of(str(path))
    rows = draw.draw(st.lists(st.integers(0, len(expected) - 1))) if expected else []
    some = draw.draw(st.sampled_from([None, {"cls"}, {"jpg", "json"}, set()]))
    wanted = items(
        {k: v for k, v in s.items() if some is None or k[:2] == "__" or k in some} for s in expected
    )
    ways = {"map": lambda: open_read(str(path)), "memory": lambda: InMemory(data), "ranges": lambda: None}
    ways["pieces"] = ways["map"]
    for way, opened in ways.items():
        for verify in (False, True):
            shard = IndexedShard(
                str(path), sidecar, opened(), fields=some, verify=verify, mapped=way != "pieces"
            )
            assert (shard.content is not None) == (way in ("map", "memory"))
            assert len(shard) == len(expected)
            assert items(shard) == wanted
            assert items(shard.samples(np.array(rows, np.int64))) == [wanted[row] for row in rows]
            assert items(shard.some(np.array(rows, np.int32))) == [wanted[row] for row in rows]
            assert [list(shard.sample(row).items()) for row in rows] == [wanted[row] for row in rows]


def test_iterating_reads_in_bounded_chunks(tmp_path, monkeypatch):
    path = tmp_path / "a.tar"
    # With different fields: samples with equal fields are yielded one at a time.
    path.write_bytes(plain([(f"{i:03d}.{'abc'[i % 3]}", b"x" * (i % 7) * 100) for i in range(100)]))
    monkeypatch.setattr(indexed, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(indexed, "CHUNK", 3)
    requested = []

    class Watched(IndexedShard):
        def samples(self, rows):
            requested.append(super().samples(rows))
            return requested[-1]

    shard = Watched(str(path), index_of(str(path)), open_read(str(path)))
    assert items(shard) == items(tarmac.read(path))
    sizes = [sum(len(sample["abc"[int(sample["__key__"]) % 3]]) for sample in piece) for piece in requested]
    assert max(sizes) <= 1000
    assert max(map(len, requested)) == 3
    assert len(requested) < 60
    monkeypatch.setattr(indexed, "CHUNK_BYTES", 1)
    assert items(shard) == items(tarmac.read(path))  # a larger sample is read alone


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("selected", [None, 1, 2])
def test_any_number_of_equal_fields(tmp_path, count, selected):
    path = tmp_path / "a.tar"
    names = [(f"{i:03d}.{'abcde'[k]}", b"%d %d" % (i, k)) for i in range(20) for k in range(count)]
    path.write_bytes(plain(names))
    fields = None if selected is None else "abcde"[:selected]
    shard = IndexedShard(str(path), index_of(str(path)), open_read(str(path)), fields=fields)
    wanted = [
        {name: value for name, value in sample.items() if name[0] == "_" or name in (fields or "abcde")}
        for sample in tarmac.read(path)
    ]
    assert list(shard) == wanted
    assert shard.samples(np.arange(20)[::-1]) == wanted[::-1]
    assert [shard.sample(row) for row in range(20)] == wanted


@pytest.mark.parametrize("member", range(6))
def test_verify_finds_a_changed_byte(tmp_path, member):
    files = [(f"{i}.{field}", b"payload") for i in range(3) for field in ("a", "b")]
    good = plain(files)
    path = tmp_path / "a.tar"
    path.write_bytes(good)
    sidecar = index_of(str(path))
    bad = bytearray(good)
    bad[1024 * member + 512] ^= 4
    for source in (InMemory(bytes(bad)), None):
        if source is None:
            path.write_bytes(bad)
        shard = IndexedShard(str(path), sidecar, source, verify=True)
        with pytest.raises(DigestMismatch, match=f'field "{"ab"[member % 2]}"') as caught:
            list(shard)
        assert (caught.value.key, caught.value.url) == (str(member // 2), str(path))
        good_rows = np.array([row for row in range(3) if row != member // 2])
        assert len(shard.samples(good_rows)) == 2
        only = IndexedShard(str(path), sidecar, source, verify=True, fields=["ba"[member % 2]])
        assert len(list(only)) == 3
        assert len(list(IndexedShard(str(path), sidecar, source))) == 3


def test_verify_needs_digests(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    sidecar = read_sidecar(index_shard(str(path)), "x")
    with pytest.raises(IndexingError, match=r"a\.tar"):
        IndexedShard(str(path), sidecar, open_read(str(path)), verify=True)


def test_a_shard_of_another_size_is_stale(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    source = InMemory(plain() + bytes(512))
    with pytest.raises(IndexStale, match=r"a\.tar"):
        IndexedShard(str(path), index_of(str(path)), source)


def test_the_source_is_closed_with_the_shard(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    source, stream = InMemory(plain()), Source()
    shard = IndexedShard(str(path), index_of(str(path)), source)
    assert not source.closed
    del shard
    assert source.closed
    closed = []
    stream.close = lambda: closed.append(True)
    shard = IndexedShard(str(path), index_of(str(path)), stream)
    assert closed  # a stream cannot be addressed: the shard is read by ranges
    assert len(list(shard)) == 3


RANGES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 60)))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(RANGES)
def test_ranges_are_merged(ranges):
    starts, ends = [start for start, _ in ranges], [start + size for start, size in ranges]
    spans = coalesce(starts, ends, 10, 80)
    assert sorted(number for _, _, numbers in spans for number in numbers) == list(range(len(ranges)))
    for first, last, numbers in spans:
        assert first == min(starts[number] for number in numbers)
        assert last == max(ends[number] for number in numbers)
        assert last - first <= 80
    for (_, end, _), (start, after, _) in itertools.pairwise(spans):
        assert start > end + 10 or after > end  # what could be merged was merged


def test_few_requests_fetch_many_samples():
    data = plain([(f"{i:03d}.bin", b"%d" % i) for i in range(200)])
    with FaultServer(data) as server:
        sidecar = read_sidecar(index_shard(server.url, IndexOptions(storage=FAST)), "x")
        shard = IndexedShard(server.url, sidecar, storage=FAST)
        server.clear()
        rows = np.array([5, 199, 7, 5, 0])
        assert [sample["bin"] for sample in shard.samples(rows)] == [b"5", b"199", b"7", b"5", b"0"]
        assert len(server.requests) == 2  # 199 is too far away for one request
        assert sum(request.sent for request in server.requests) < 16_384
        server.script([Action(status=503), Action(cut=100)])
        assert [sample["bin"] for sample in shard.samples(rows)][:2] == [b"5", b"199"]
        server.script([], then=Action(status=503))
        with pytest.raises(TransferError):
            shard.samples(rows)


def test_reading_in_pieces_takes_little_memory_and_detects_truncation(tmp_path):
    path = str(tmp_path / "a.tar")
    with tarmac.TarWriter(path, encoder=False) as writer:
        for number in range(200):
            writer.write({"__key__": f"{number:03d}", "bin": b"%03d" % number * 50_000})
    sidecar = index_of(path)
    shard = IndexedShard(path, sidecar, open_read(path), mapped=False)
    baseline = reset_peak()
    for number in (np.arange(200) * 37) % 200:
        assert shard.sample(int(number))["bin"][:3] == b"%03d" % number
    assert peak() - baseline < 8 << 20  # of 30 MB
    with open(path, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(IndexStale, match=r"a\.tar"):
        shard.sample(199)
    with pytest.raises(IndexStale, match=r"a\.tar.*1000"):
        IndexedShard(path, sidecar, open_read(path), mapped=False)
