"""Columns to fields."""

from __future__ import annotations

import pytest

from tarmac.errors import EncodeFailed, MissingField, NoCodec, UrlError
from tarmac.tools.pack.sources.columns import Columns, parse_pairs


def test_pairs():
    assert parse_pairs(" img=jpg, mask = png ,cls", "--files") == {"img": "jpg", "mask": "png", "cls": "cls"}
    for wrong in ("=jpg", "img=", "a=b,a=c"):
        with pytest.raises(UrlError, match="--files"):
            parse_pairs(wrong, "--files")


def test_what_columns_become():
    layout = Columns("id", {"img": "jpg"}).layout(["id", "img", "@png", "cls", "json"], "t.csv")
    assert layout.files == {"@png": "png", "img": "jpg"}
    assert layout.plain == {"cls": "cls", "json": "json"}
    row = {"id": 7, "cls": 3, "json": {"a": 1}, "img": None}
    assert layout.key(row, 1) == "7"
    assert layout.values(row, "7") == {"cls": b"3", "json": b'{"a": 1}'}
    assert layout.files_of(row, 1) == ()
    chosen = Columns("", {}, {"label": "cls"}).layout(["label", "other"], "t.csv")
    assert chosen.values({"label": 5, "other": object()}, "k") == {"cls": b"5"}


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (Columns("absent"), ["a"]),
        (Columns("", {"absent": "jpg"}), ["a"]),
        (Columns("", {}, {"absent": "jpg"}), ["a"]),
        (Columns(), ["a", "a"]),
        (Columns("", {"a": "jpg"}), ["a", "JPG"]),
        (Columns("a"), ["a"]),
    ],
)
def test_mistakes(columns, names):
    with pytest.raises(UrlError, match=r"t\.csv"):
        columns.layout(names, "t.csv")


def test_values_that_do_not_fit():
    layout = Columns("id", {"img": "jpg"}).layout(["id", "img", "label", "cls"], "t.csv")
    with pytest.raises(NoCodec, match=r'sample "k".*label'):
        layout.values({"label": object()}, "k")
    with pytest.raises(EncodeFailed, match=r'sample "k".*cls'):
        layout.values({"cls": 0.5}, "k")
    with pytest.raises(MissingField, match="row 4 has no key"):
        layout.key({"id": ""}, 4)
    with pytest.raises(UrlError, match=r"row 4.*'img'"):
        layout.files_of({"img": 3}, 4)


def test_values_whose_fields_ask_for_nothing_are_as_json_writes_them():
    row = {"n": 1, "f": 1.5, "o": {"ä": [True]}, "t": "hi", "cls": 3, "note.txt": 2.5, "gone": None}
    layout = Columns().layout(list(row), "t.jsonl")
    found = {
        "n": b"1",
        "f": b"1.5",
        "o": '{"ä": [true]}'.encode(),
        "t": b"hi",
        "cls": b"3",
        "note.txt": b"2.5",
    }
    assert layout.values(row, "k") == found
    with pytest.raises(EncodeFailed, match='field "cls"'):
        layout.values(row | {"cls": 2.5}, "k")
