"""LMDB databases."""

from __future__ import annotations

import lmdb
import pytest

from tarmac.errors import BadName, DuplicateField
from tarmac.tools.export import lmdb as module
from tools.export.samples import fields, odd, run, write


def entries(path):
    with (
        lmdb.open(str(path), subdir=False, lock=False, readonly=True) as database,
        database.begin() as reader,
    ):
        return dict(reader.cursor())


def test_members_by_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_SAMPLES", 2)
    run(write(tmp_path, [3, 2]), "lmdb", tmp_path / "x.lmdb")
    assert entries(tmp_path / "x.lmdb") == {
        f"k/{number:03d}.{name}".encode(): data
        for number in range(5)
        for name, data in fields(number).items()
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tarmac", "s0.tar", "s1.tar", "x.lmdb"]


def test_a_map_that_is_too_small_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAP", 1 << 16)
    big = [(f"{number}.bin", bytes([number]) * 300_000) for number in range(5)]
    run(odd(tmp_path, [*big, ("e.bin", b""), ("b\udc80.bin", b"1")]), "lmdb", tmp_path / "x.lmdb")
    stored = entries(tmp_path / "x.lmdb")
    assert [stored[b"%d.bin" % number] for number in range(5)] == [data for _, data in big]
    assert (stored[b"e.bin"], stored[b"b\x80.bin"]) == (b"", b"1")


def test_equal_keys_are_an_error(tmp_path):
    shards = [odd(tmp_path, [("a.bin", b"%d" % number)], f"{number}.tar") for number in range(2)]
    with pytest.raises(DuplicateField, match=r'sample "a".*a\.bin'):
        run(shards, "lmdb", tmp_path / "x.lmdb")
    assert not (tmp_path / "x.lmdb").exists()


def test_a_name_that_is_too_long(tmp_path):
    shard = odd(tmp_path, [("a.bin", b"1"), ("k" * 600 + ".bin", b"2")])
    with pytest.raises(BadName, match="604"):
        run(shard, "lmdb", tmp_path / "x.lmdb")
    report = run(shard, "lmdb", tmp_path / "y.lmdb", on_error="skip")
    assert (report.written, report.failed) == (1, 1)


@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_samples_with_equal_keys_can_be_skipped(tmp_path, monkeypatch, batch):
    monkeypatch.setattr(module, "MAX_SAMPLES", batch)
    first = odd(tmp_path, [("a.bin", b""), ("b.bin", b"1"), ("c.bin", b"1")], "0.tar")
    other = odd(tmp_path, [("a.new", b"2"), ("a.bin", b"2"), ("d.bin", b"2"), ("c.bin", b"2")], "1.tar")
    report = run([first, other], "lmdb", tmp_path / "x.lmdb", on_error="skip")
    assert (report.read, report.written, report.failed) == (6, 4, 2)
    assert [line.partition(":")[0].split()[-1] for line in report.errors] == ['"a"', '"c"']
    expected = {b"a.bin": b"", b"b.bin": b"1", b"c.bin": b"1", b"d.bin": b"2"}
    assert entries(tmp_path / "x.lmdb") == expected
