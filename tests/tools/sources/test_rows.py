"""Rows are read again from where they begin; a table that was cut meanwhile is an error."""

from __future__ import annotations

import pytest

from tarmac.errors import ObjectChanged
from tarmac.tools.sources.lines import Lines
from tarmac.tools.sources.source import Skipped
from tools.sources.packing import near


def test_a_table_that_was_cut(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    source = Lines(str(path), near(path))
    items = list(source.items(Skipped()))
    path.write_bytes(b"one\n")
    assert source.fingerprint() != Lines(str(path), near(path)).fingerprint()
    with source.opened([], {}) as load:
        assert load("0", items[0][2])["txt"] == b"one"
        with pytest.raises(ObjectChanged, match=r"a\.txt"):
            load("1", items[1][2])
