"""What formats have in common."""

from __future__ import annotations

import pytest

from tarmac.errors import SampleError, UrlError
from tarmac.tools.export.form import FORMS, Shape, SinkFile, form_of_name, payload

SAMPLE = {"__key__": "a", "__url__": "u", "txt": b"x", "cls": b"3"}


def test_rows():
    assert Shape().pairs(SAMPLE) == {"__key__": "a", "txt": "x", "cls": 3}
    assert Shape(columns=("cls", "json", "txt")).row(SAMPLE) == ["a", 3, None, "x"]
    assert Shape(columns=("txt", "cls"), key=False).row(SAMPLE) == ["x", 3]
    assert payload(SAMPLE) == 2
    with pytest.raises(SampleError, match=r'"cls" has no column.*--fields txt,cls'):
        Shape(columns=("txt",)).row(SAMPLE)


def test_options_tell_what_the_result_depends_on():
    assert Shape().options() == {}
    assert Shape(columns=("a",), key=False).options() == {"columns": ["a"], "key": False}


def test_formats_by_name():
    names = ["jsonl", "tsv", "csv", "yaml", "parquet", "sqlite", "lmdb", "tfrecord"]
    assert [form_of_name(f"x{FORMS[name].suffix.upper()}") for name in names] == names
    assert form_of_name("a/b.db") == "sqlite"
    for name in ("x", "x.txt", "dir/"):
        with pytest.raises(UrlError, match="--to"):
            form_of_name(name)


def test_a_sink_as_a_file():
    parts = []

    class Sink:
        write = parts.append

    file = SinkFile(Sink())
    assert file.write(memoryview(b"abc")) == 3
    file.flush()
    file.close()
    assert (file.tell(), parts) == (3, [b"abc"])
