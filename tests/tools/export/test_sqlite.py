"""SQLite databases."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tarmac.errors import EncodeFailed, UsageError
from tarmac.tools.export import sqlite
from tools.export.samples import TEXT, fields, odd, run, write


def rows(path, query="SELECT * FROM samples ORDER BY number"):
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def test_every_kind_of_field(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "TRANSACTION", 2)
    run(write(tmp_path, [3, 2]), "sqlite", tmp_path / "x.sqlite")
    stored = rows(tmp_path / "x.sqlite", "SELECT number, key, cls, png, txt FROM samples ORDER BY number")
    assert stored == [
        (number + 1, f"k/{number:03d}", number, fields(number)["png"], f"{TEXT}{number}")
        for number in range(5)
    ]
    assert rows(
        tmp_path / "x.sqlite", "SELECT json_extract(json, '$.n') FROM samples WHERE key = 'k/003'"
    ) == [(3,)]
    assert rows(tmp_path / "x.sqlite", "PRAGMA integrity_check") == [("ok",)]
    plan = rows(tmp_path / "x.sqlite", "EXPLAIN QUERY PLAN SELECT cls FROM samples WHERE key = 'k/003'")
    assert "samples_key" in plan[0][3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tarmac", "s0.tar", "s1.tar", "x.sqlite"]


def test_equal_keys_and_odd_names_are_kept(tmp_path):
    shards = [odd(tmp_path, [("a.t'\"x", b"\0")], name) for name in ("a.tar", "b.tar")]
    run(shards, "sqlite", tmp_path / "x.db")
    assert rows(tmp_path / "x.db") == [(1, "a", b"\0"), (2, "a", b"\0")]
    run(shards, "sqlite", tmp_path / "y.db", key=False)
    assert rows(tmp_path / "y.db") == [(1, b"\0"), (2, b"\0")]


def test_reserved_column_names(tmp_path):
    shard = odd(tmp_path, [("a.key", b"x")])
    with pytest.raises(UsageError, match='"key"'):
        run(shard, "sqlite", tmp_path / "x.db")
    run(shard, "sqlite", tmp_path / "x.db", fields={"other": "key"}, overwrite=True)
    assert rows(tmp_path / "x.db") == [(1, "a", b"x")]


def test_a_failed_export_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="cls"):
        run(odd(tmp_path, [("a.cls", b"x")]), "sqlite", tmp_path / "x.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tarmac", "odd.tar"]


def test_a_sample_that_is_too_large(tmp_path, monkeypatch):
    """The others are kept, whatever its position in a transaction."""
    monkeypatch.setattr(sqlite, "TRANSACTION", 2)
    connect = sqlite3.connect

    def small(*args, **options):
        database = connect(*args, **options)
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
        return database

    monkeypatch.setattr(sqlite.sqlite3, "connect", small)
    sizes = [2000, 1, 2000, 2, 2000, 3, 2000]
    shard = odd(tmp_path, [(f"{number}.txt", b"x" * size) for number, size in enumerate(sizes)])
    report = run(shard, "sqlite", tmp_path / "x.db", on_error="skip")
    assert (report.written, report.failed) == (3, 4)
    assert rows(tmp_path / "x.db", "SELECT key, length(txt) FROM samples") == [("1", 1), ("3", 2), ("5", 3)]
    with pytest.raises(EncodeFailed, match='sample "0"'):
        run(shard, "sqlite", tmp_path / "y.db")
