"""The registry of formats, and what their writers have in common."""

from __future__ import annotations

import pytest

from tarmac.errors import SampleError, UsageError
from tarmac.tools.export.formats import FORMATS, RowOptions, SinkFile, guess_format, payload

SAMPLE = {"__key__": "a", "__url__": "u", "txt": b"x", "cls": b"3"}


def test_rows():
    assert RowOptions().values(SAMPLE) == {"__key__": "a", "txt": "x", "cls": 3}
    assert RowOptions(columns=("cls", "json", "txt")).row(SAMPLE) == ["a", 3, None, "x"]
    assert RowOptions(columns=("txt", "cls"), key=False).row(SAMPLE) == ["x", 3]
    assert payload(SAMPLE) == 2
    with pytest.raises(SampleError, match=r'"cls".*`drop_fields` cls'):
        RowOptions(columns=("txt",)).row(SAMPLE)


def test_options():
    assert RowOptions().options() == {}
    assert RowOptions(columns=("a",), key=False).options() == {"columns": ["a"], "key": False}


def test_formats_by_name():
    names = ["jsonl", "tsv", "csv", "yaml", "parquet", "sqlite", "lmdb", "tfrecord"]
    assert [guess_format(f"x{FORMATS[name].extension.upper()}") for name in names] == names
    assert guess_format("a/b.db") == "sqlite"
    for name in ("x", "x.txt", "dir/"):
        with pytest.raises(UsageError, match=f"`format`, {name}"):
            guess_format(name)


def test_a_sink_as_a_file():
    written = []

    class Sink:
        write = written.append

    file = SinkFile(Sink())
    assert file.write(memoryview(b"abc")) == 3
    file.flush()
    file.close()
    assert (file.tell(), written) == (3, [b"abc"])
