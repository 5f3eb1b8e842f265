"""Keys and their numbers, in a file."""

from __future__ import annotations

import pickle

import pytest

from tarmac.errors import SampleError, WriteError
from tarmac.tools.join.keys import KeyTable, database

KEYS = ["b", "a", "é", "\udc80", "\ud800", "c" * 3000]


def test_numbers(tmp_path):
    with KeyTable.made(str(tmp_path / "k"), KEYS, "error", "x.csv") as table:
        assert list(table.numbers([*KEYS, "z", "a"])) == [0, 1, 2, 3, 4, 5, -1, 1]
        assert list(table.numbers([])) == []
        assert list(table.numbers(["z", "b"] * 1000)) == [-1, 0] * 1000
        assert ("é" in table, "z" in table, 5 in table, len(table)) == (True, False, False, 6)
        assert sorted(key for key in table if key != "\udced\udca0\udc80") == sorted(KEYS[:4] + KEYS[5:])
        with pytest.raises(TypeError, match="stays in its process"):
            pickle.dumps(table)


def test_duplicates(tmp_path):
    with (
        pytest.raises(SampleError) as caught,
        KeyTable.made(str(tmp_path / "k"), ["a", "b", "a"], "error", "x"),
    ):
        pass
    assert (caught.value.key, caught.value.url) == ("a", "x")
    with KeyTable.made(str(tmp_path / "l"), ["a", "b", "a"], "first", "x") as table:
        assert list(table.numbers("ab")) == [0, 1]
        assert len(table) == 2


def test_a_place_that_cannot_be_used(tmp_path):
    with pytest.raises(WriteError, match="--tmp DIR"), database(str(tmp_path / "absent" / "x")):
        pass
    (tmp_path / "x").mkdir()
    with pytest.raises(WriteError), database(str(tmp_path / "x")):
        pass
    with pytest.raises(WriteError, match="no such table"), database(str(tmp_path / "y")) as opened:
        opened.execute("SELECT * FROM absent")
