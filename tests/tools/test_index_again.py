"""Reindexing keeps columns and digests, computed from the changed shard."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

import tarmac
from harness.shards import plain
from tarmac.errors import BadCondition, CodecError
from tarmac.indexing.build import IndexOptions, index_shard
from tarmac.indexing.entries import Entries
from tarmac.indexing.meta import meta_plan
from tarmac.indexing.sidecar import make_sidecar, open_sidecar, write_sidecar
from tarmac.storage import ObjectInfo

OLD = [("a.cls", b"1"), ("a.json", b'{"w": 5}'), ("b.cls", b"2"), ("b.json", b'{"w": 6}')]
NEW = [*OLD[:2], ("c.cls", b"33"), ("c.json", b'{"w": 7}'), ("d.cls", b"4"), ("d.json", b'{"w": 8}')]
FIRST = {"meta": ["cls", "json.w"], "digests": True}


def index(**options):
    return tarmac.index("s.tar", "s.json", jobs=1, **options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    (tmp_path / "s.tar").write_bytes(plain(OLD))
    index(**FIRST)
    return tmp_path


def columns_and_digests():
    sidecar = open_sidecar("s.tar.arrow")
    return sorted(sidecar.metadata), sidecar.facts.digests


def reindex(**options):
    index(**options)
    return tarmac.Dataset("s.json", verify=True)


def reindex_by_first_use():
    return tarmac.Dataset("*.tar", verify=True)


@pytest.mark.parametrize("again", [reindex, reindex_by_first_use])
def test_columns_and_digests_stay(folder, again):
    (folder / "s.tar").write_bytes(plain(NEW))
    ds = again()
    assert columns_and_digests() == (["cls", "json.w"], True)
    assert [sample["__key__"] for sample in ds] == ["a", "c", "d"]
    assert [sample["__key__"] for sample in ds.where("cls = 33 or w = 8")] == ["c", "d"]


def test_columns_add_up(folder):
    (folder / "s.tar").write_bytes(plain(NEW))
    ds = reindex(meta=["cls.size"])
    assert columns_and_digests() == (["cls", "cls.size", "json.w"], True)
    assert len(ds.where("cls.size = 2 and cls = 33 and json.w = 7")) == 1
    assert reindex(meta=["json.w"]).where("cls.size = 2")  # there already, with more
    assert columns_and_digests() == (["cls", "cls.size", "json.w"], True)


def test_adding_to_an_index_that_holds_keeps_the_rest(folder):
    index(drop=True, meta=["cls"])
    assert columns_and_digests() == (["cls"], False)
    index(digests=True)
    assert columns_and_digests() == (["cls"], True)
    index(meta=["json.w"])
    assert columns_and_digests() == (["cls", "json.w"], True)


def test_dropping(folder):
    assert (index().built, index().up_to_date) == ([], ["s.tar"])
    assert index(drop=True).built == ["s.tar"]
    assert columns_and_digests() == ([], False)
    assert index(drop=True).up_to_date == ["s.tar"]


def test_a_corrected_label_is_found_by_indexing_again(folder):
    """Size and headers are as they were, so that only the time tells; the column must not stay behind."""
    big = [(name, data.ljust(9000)) for name, data in OLD]
    many = [(f"{number:03d}.cls", b"1") for number in range(99)]
    (folder / "s.tar").write_bytes(plain([*many, *big]))
    index()
    many[31] = ("031.cls", b"9")
    (folder / "s.tar").write_bytes(plain([*many, *big]))
    os.utime("s.tar", ns=(1, 1))
    index()
    assert [sample["__key__"] for sample in tarmac.Dataset("s.json").where("cls = 9")] == ["031"]


def test_damaged_fields_stay_null(folder):
    (folder / "s.tar").write_bytes(plain([("a.json", b"{")]))
    with pytest.raises(CodecError):
        index(**FIRST)
    index(**FIRST, on_bad_meta="null")
    (folder / "s.tar").write_bytes(plain([("a.json", b"{"), ("b.json", b'{"w": 1}')]))
    assert len(reindex_by_first_use().where("w is null")) == 1


def test_dali_files_do_not_take_columns_away(folder):
    (folder / "s.tar").write_bytes(plain(NEW))
    (folder / "s.idx").write_text("v1.2 0\n")
    index(dali=True)
    assert columns_and_digests() == (["cls", "json.w"], True)


def test_an_index_among_our_own_files(folder):
    (folder / "s.tar").write_bytes(plain(NEW))
    (folder / "s.tar.arrow").unlink()
    (folder / "s.tar.arrow").mkdir()  # nothing can be written beside the shard
    ds = tarmac.Dataset("s.tar")
    own = ds._parts[0].shards.manifest.shards[0].index
    write_sidecar(own, index_shard("s.tar", IndexOptions(meta=meta_plan(["cls"]))))
    (folder / "s.tar").write_bytes(plain(OLD))
    assert len(tarmac.Dataset("s.tar").where("cls = 2")) == 1


def test_unknown_columns(folder):
    entries = Entries()
    entries.add("a", {"cls": (512, 1, 0)})
    info, columns = ObjectInfo(5000, None), {"mine": pa.array([1])}
    write_sidecar("s.tar.arrow", make_sidecar(entries, info, columns, digests=False))
    with pytest.raises(BadCondition, match=r'"mine".*--drop'):
        tarmac.Dataset("s.tar")
    index(drop=True)
    assert len(tarmac.Dataset("s.tar")) == 2
