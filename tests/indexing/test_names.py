"""A rewritten shard never returns the bytes of one sample under the key of another.

Sampled digests recognise a copy by a few spans. Between them samples of equal sizes can be swapped.
"""

from __future__ import annotations

import contextlib
import os
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness.faultserver import FaultServer
from harness.folder import folder as served
from harness.shards import plain, with_hard_links
from tarmac import index
from tarmac.errors import IndexDamaged, IndexStale
from tarmac.exact.indexed import IndexedShard
from tarmac.indexing.entries import Entries
from tarmac.indexing.sidecar import make_sidecar, read_sidecar
from tarmac.storage import ObjectInfo
from tarmac.tools.index import stale_shards

COUNT = 400
LOCATIONS = ["local", "in memory", "remote", "remote in memory", "cache"]


def shard_of(order, form=tarfile.USTAR_FORMAT, directory=""):
    """Samples of equal sizes in this order, each with its number as key and as payload."""
    return plain([(f"{directory}{n:05d}.{field}", b"%05d" % n * 1000) for n in order for field in ("a", "B")],
                 form)  # fmt: skip


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "data"
    root.mkdir()
    (root / "s.tar").write_bytes(shard_of(range(COUNT)))
    index(str(root / "s.tar"), str(root / "m.json"))
    with served(root) as url:
        yield root, url


def replace(root, data):
    path = root / "s.tar"
    assert path.stat().st_size == len(data)
    path.write_bytes(data)
    os.utime(path, ns=(len(os.listdir(root)), 1))


def opened(where, root, url, cache):
    options = {"in_memory": True} if "memory" in where else {}
    if where == "cache":
        options["cache"] = tarmac.Cache(str(cache))
    source = str(root) if where.startswith(("local", "in")) else url
    return tarmac.Dataset(f"{source}/m.json", **options)


def wrong_rows(dataset, rows):
    """Rows whose payload belongs to another key; rejected ones do not count."""
    wrong = []
    for row in rows:
        with contextlib.suppress(IndexStale):
            sample = dataset[row]
            number = sample["__key__"].rpartition("/")[2].encode()
            wrong += [row] if {sample["a"][:5], sample["b"][:5]} != {number} else []
    return wrong


@pytest.mark.parametrize("where", LOCATIONS)
def test_samples_swapped_between_the_sampled_spans_are_rejected(data, tmp_path, where):
    root, url = data
    order = list(range(COUNT))
    order[200], order[201] = order[201], order[200]
    replace(root, shard_of(order))
    dataset = opened(where, root, url, tmp_path / "cache")
    for row in (200, 201):
        with pytest.raises(IndexStale, match=r'"0020[01]\.a"'):
            _ = dataset[row]
    with pytest.raises(IndexStale):
        list(opened(where, root, url, tmp_path / "cache"))


def test_a_rewritten_shard_is_reported_and_indexed_again(data):
    root, _ = data
    order = list(range(COUNT))
    order[200], order[201] = order[201], order[200]
    replace(root, shard_of(order))
    assert [type(stale.error) for stale in stale_shards(str(root / "m.json"))] == [IndexStale]
    assert wrong_rows(tarmac.Dataset(str(root / "s.tar")), range(COUNT)) == []
    assert tarmac.Dataset(str(root / "s.tar"))[200]["__key__"] == "00201"


ROWS = st.integers(0, 99)


@settings(max_examples=25, deadline=None)
@given(swaps=st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=3), where=st.sampled_from(LOCATIONS))
def test_no_order_of_samples_returns_wrong_data(tmp_path_factory, swaps, where):
    root = tmp_path_factory.mktemp("orders")
    (root / "s.tar").write_bytes(shard_of(range(100)))
    index(str(root / "s.tar"), str(root / "m.json"))
    order = list(range(100))
    for one, other in swaps:
        order[one], order[other] = order[other], order[one]
    replace(root, shard_of(order))
    rows = sorted({row for swap in swaps for row in swap} | {0, 50, 99})
    with served(root) as url:
        assert wrong_rows(opened(where, root, url, root / "cache"), rows) == []


@pytest.mark.parametrize("where", LOCATIONS)
@pytest.mark.parametrize("kind", ["upper case", "./", "long", "unicode", "gnu", "hard links", "metadata"])
def test_copies_are_accepted_whatever_their_names(tmp_path, where, kind):
    root = tmp_path / "data"
    root.mkdir()
    long, numbers = "d" * 60 + "/" + "e" * 60 + "/", range(50)
    data = {
        "upper case": lambda: shard_of(numbers),
        "./": lambda: shard_of(numbers, directory="./"),
        "long": lambda: shard_of(numbers, directory=long),
        "unicode": lambda: shard_of(numbers, tarfile.PAX_FORMAT, directory="é/"),
        "gnu": lambda: shard_of(numbers, tarfile.GNU_FORMAT, directory=long),
        "hard links": with_hard_links,
        "metadata": lambda: plain([("__meta__/x.json", b"{}"), ("a.txt", b"1"), ("nodot", b"2"),
                                   ("b.txt", b"3")]),
    }[kind]()  # fmt: skip
    (root / "s.tar").write_bytes(data)
    index(str(root / "s.tar"), str(root / "m.json"))
    before = [dict(sample, __url__="") for sample in tarmac.Dataset(str(root / "m.json"))]
    os.utime(root / "s.tar", ns=(1, 1))
    with served(root) as url:
        dataset = opened(where, root, url, tmp_path / "cache")
        assert [dict(sample, __url__="") for sample in dataset] == before
        assert [dict(dataset[row], __url__="") for row in range(len(dataset))] == before


def test_headers_are_read_once_and_not_at_all_if_the_version_is_unchanged(data, monkeypatch):
    root, _ = data
    reads = []
    from tarmac.indexing import names

    read = names.read_members
    monkeypatch.setattr(names, "read_members", lambda *a, **k: reads.append(1) or read(*a, **k))
    _ = tarmac.Dataset(str(root / "m.json"))[0]
    assert not reads
    os.utime(root / "s.tar", ns=(1, 1))
    for _ in range(3):
        _ = tarmac.Dataset(str(root / "m.json"))[0]
    assert len(reads) == 1
    os.utime(root / "s.tar", ns=(2, 2))
    _ = tarmac.Dataset(str(root / "m.json"))[0]
    assert len(reads) == 2


def test_an_index_with_a_member_without_room_for_its_header():
    entries = Entries()
    entries.add("a", {"txt": (100, 3, 0)})
    sidecar = read_sidecar(make_sidecar(entries, ObjectInfo(9000, None), {}, digests=False), "x")
    with FaultServer(bytes(9000)) as server, pytest.raises(IndexDamaged, match="header"):
        IndexedShard(server.url, sidecar, remote=ObjectInfo(9000, None))
