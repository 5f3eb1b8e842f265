"""Rows are read again from where they begin; a table that was cut meanwhile is an error."""

from __future__ import annotations

import os
import pickle

import pytest

from tarmac.errors import ObjectChanged
from tarmac.tools.pack.sources.delimited import Csv
from tarmac.tools.pack.sources.jsonl import JsonLines
from tarmac.tools.pack.sources.lines import Lines
from tarmac.tools.pack.sources.source import Skipped
from tools.pack.sources.packing import near


def test_a_table_that_was_cut(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    source = Lines(str(path), near(path))
    items = list(source.items(Skipped()))
    path.write_bytes(b"one\n")
    assert source.fingerprint() != Lines(str(path), near(path)).fingerprint()
    with pytest.raises(ObjectChanged, match=r"a\.txt"), source.opened([items[0][2]], {}):
        pass


def rewrite(path, data):
    """Write a file so that its time of change shows it, however quick this is."""
    path.write_bytes(data)
    os.utime(path, ns=(0, 10**9))


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (Lines, b"one\ntwo\n", b"uno\ndos\n"),
        (Csv, b"id,txt\na,one\n", b"id,cap\nb,two\n"),
        (JsonLines, b'{"txt": "one"}\n', b'{"txt": "two"}\n'),
    ],
)
def test_a_table_of_the_same_length_that_was_replaced(tmp_path, kind, before, after):
    path = tmp_path / "table"
    path.write_bytes(before)
    source = kind(str(path), near(path))
    wheres = [where for _, _, where in source.items(Skipped())]
    source = pickle.loads(pickle.dumps(source))
    rewrite(path, after)
    with pytest.raises(ObjectChanged, match="changed since it was planned"), source.opened(wheres, {}):
        pass
    path.unlink()
    with pytest.raises(ObjectChanged), source.opened(wheres, {}):
        pass


def test_a_table_that_is_written_to_while_it_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    source = Lines(str(path), near(path))
    (_, _, first), (_, _, second) = source.items(Skipped())
    with pytest.raises(ObjectChanged), source.opened([first, second], {}) as load:
        assert load("0", first)["txt"] == b"one"
        rewrite(path, b"one\ndos\n")
        load("1", second)
