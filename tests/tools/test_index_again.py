"""Indexing again keeps what the index had, computed for the shard as it is now."""

from __future__ import annotations

import json
import os

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import tarmac
from harness.shards import plain
from tarmac.cli import app
from tarmac.errors import BadCondition
from tarmac.indexing.build import IndexOptions, index_shard
from tarmac.indexing.entries import Entries
from tarmac.indexing.meta import parse_meta
from tarmac.indexing.sidecar import make_sidecar, open_sidecar, write_sidecar
from tarmac.storage import ObjectInfo

OLD = [("a.cls", b"1"), ("a.json", b'{"w": 5}'), ("b.cls", b"2"), ("b.json", b'{"w": 6}')]
NEW = [*OLD[:2], ("c.cls", b"33"), ("c.json", b'{"w": 7}'), ("d.cls", b"4"), ("d.json", b'{"w": 8}')]
FIRST = ["s.tar", "-o", "s.json", "-j", "1", "--meta", "cls,json.w", "--digest"]


def run(*args):
    return CliRunner().invoke(app, ["index", *map(str, args)])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    (tmp_path / "s.tar").write_bytes(plain(OLD))
    assert run(*FIRST).exit_code == 0
    return tmp_path


def there():
    sidecar = open_sidecar("s.tar.arrow")
    return sorted(sidecar.metadata), sidecar.facts.digests


def reindex_by_command(*flags):
    assert run("s.tar", "-o", "s.json", "-j", "1", *flags).exit_code == 0
    return tarmac.Dataset("s.json", verify=True)


def reindex_by_first_use():
    return tarmac.Dataset("*.tar", verify=True)


@pytest.mark.parametrize("reindex", [reindex_by_command, reindex_by_first_use])
def test_columns_and_digests_stay(folder, reindex):
    (folder / "s.tar").write_bytes(plain(NEW))
    ds = reindex()
    assert there() == (["cls", "json.w"], True)
    assert [sample["__key__"] for sample in ds] == ["a", "c", "d"]
    assert [sample["__key__"] for sample in ds.where("cls = 33 or w = 8")] == ["c", "d"]


def test_flags_add(folder):
    (folder / "s.tar").write_bytes(plain(NEW))
    ds = reindex_by_command("--meta", "cls.size")
    assert there() == (["cls", "cls.size", "json.w"], True)
    assert len(ds.where("cls.size = 2 and cls = 33 and json.w = 7")) == 1
    assert reindex_by_command("--meta", "json.w").where("cls.size = 2")  # there already, with more
    assert there() == (["cls", "cls.size", "json.w"], True)


def test_adding_to_an_index_that_holds_keeps_the_rest(folder):
    assert run("s.tar", "-j", "1", "--drop", "--meta", "cls").exit_code == 0
    assert there() == (["cls"], False)
    assert run("s.tar", "-j", "1", "--digest").exit_code == 0
    assert there() == (["cls"], True)
    assert run("s.tar", "-j", "1", "--meta", "json.w").exit_code == 0
    assert there() == (["cls", "json.w"], True)


def test_dropping(folder):
    report = json.loads(run("s.tar", "-j", "1", "--json").stdout)
    assert (report["made"], report["kept"]) == (0, 1)
    report = json.loads(run("s.tar", "-j", "1", "--drop", "--json").stdout)
    assert (report["made"], report["kept"]) == (1, 0)
    assert there() == ([], False)
    report = json.loads(run("s.tar", "-j", "1", "--drop", "--json").stdout)
    assert (report["made"], report["kept"]) == (0, 1)


def test_a_corrected_label_is_found_by_indexing_again(folder):
    """Size and headers are as they were, so that only the time tells; the column must not stay behind."""
    big = [(name, data.ljust(9000)) for name, data in OLD]
    many = [(f"{number:03d}.cls", b"1") for number in range(99)]
    (folder / "s.tar").write_bytes(plain([*many, *big]))
    assert run("s.tar", "-o", "s.json", "-j", "1").exit_code == 0
    many[31] = ("031.cls", b"9")
    (folder / "s.tar").write_bytes(plain([*many, *big]))
    os.utime("s.tar", ns=(1, 1))
    assert run("s.tar", "-o", "s.json", "-j", "1").exit_code == 0
    assert [sample["__key__"] for sample in tarmac.Dataset("s.json").where("cls = 9")] == ["031"]


def test_damaged_fields_that_gave_null_go_on_to(folder):
    (folder / "s.tar").write_bytes(plain([("a.json", b"{")]))
    assert run(*FIRST).exit_code == 1  # the flag was not given then, either
    assert run(*FIRST, "--bad-meta").exit_code == 0
    (folder / "s.tar").write_bytes(plain([("a.json", b"{"), ("b.json", b'{"w": 1}')]))
    assert len(reindex_by_first_use().where("w is null")) == 1


def test_dali_files_do_not_take_columns_away(folder):
    (folder / "s.tar").write_bytes(plain(NEW))
    (folder / "s.idx").write_text("v1.2 0\n")
    assert run("s.tar", "--dali", "-j", "1").exit_code == 0
    assert there() == (["cls", "json.w"], True)


def test_an_index_among_our_own_files(folder):
    (folder / "s.tar").write_bytes(plain(NEW))
    (folder / "s.tar.arrow").unlink()
    (folder / "s.tar.arrow").mkdir()  # nothing can be written beside the shard
    ds = tarmac.Dataset("s.tar")
    own = ds._parts[0].shards.manifest.shards[0].index
    write_sidecar(own, index_shard("s.tar", IndexOptions(meta=parse_meta("cls"))))
    (folder / "s.tar").write_bytes(plain(OLD))
    assert len(tarmac.Dataset("s.tar").where("cls = 2")) == 1


def test_columns_that_nobody_can_compute(folder):
    entries = Entries()
    entries.add("a", {"cls": (512, 1, 0)})
    info, columns = ObjectInfo(5000, None), {"mine": pa.array([1])}
    write_sidecar("s.tar.arrow", make_sidecar(entries, info, columns, digests=False, local=True))
    with pytest.raises(BadCondition, match=r'"mine".*--drop'):
        tarmac.Dataset("s.tar")
    assert run("s.tar", "-j", "1", "--drop").exit_code == 0
    assert len(tarmac.Dataset("s.tar")) == 2
