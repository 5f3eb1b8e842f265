"""JSON lines."""

from __future__ import annotations

import pytest

from tarmac.errors import DecodeFailed, UrlError
from tarmac.tools.pack.sources.columns import Columns
from tarmac.tools.pack.sources.jsonl import JsonLines
from tools.pack.sources.packing import grow, near, read_all


def table(tmp_path, text, columns=None):
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    return JsonLines(str(path), near(path), columns or Columns())


def test_objects(tmp_path):
    grow(tmp_path, {"1.jpg": b"J"})
    text = (
        '{"id": "a", "cls": 3, "json": [1, null], "img": "1.jpg"}\n\n{"id": "b", "txt": "é", "cls": null}\n'
    )
    samples, _ = read_all(table(tmp_path, text, Columns("id", {"img": "jpg"})), order=[1, 0])
    assert samples == [
        {"__key__": "b", "txt": "é".encode()},
        {"__key__": "a", "jpg": b"J", "cls": b"3", "json": b"[1, null]"},
    ]


@pytest.mark.parametrize("text", ['{"a": 1}\n{"a"', '{"a": 1}\n[1]\n'])
def test_mistakes(tmp_path, text):
    with pytest.raises(DecodeFailed, match="line 2"):
        read_all(table(tmp_path, text))


def test_nothing(tmp_path):
    with pytest.raises(UrlError, match="no object"):
        read_all(table(tmp_path, "\n"))
