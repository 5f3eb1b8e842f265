"""Columns to fields: one rule for every verb."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tarmac
from tarmac.errors import DecodeFailed, EncodeFailed, MissingField, UsageError
from tarmac.tools.columns import Columns, encode_json, row_key


def test_names_of_fields():
    columns = ["id", "img", "@png", "cls", "json"]
    layout = Columns("id", files={"img": "jpg"}).layout(columns, "t.csv")
    assert layout.files == {"@png": "png", "img": "jpg"}
    assert layout.fields == {"cls": "cls", "json": "json"}
    assert layout.columns == ["id", "@png", "img", "cls", "json"]
    layout = Columns(fields={"label": "cls"}).layout(["label", "other"], "t.csv")
    assert layout.values({"label": 5, "other": object()}, "k") == {"cls": b"5"}


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("n", 1, b"1"),
        ("f", 1.5, b"1.5"),
        ("f", float("inf"), b"Infinity"),
        ("f", float("nan"), None),
        ("o", {"ä": [True]}, '{"ä": [true]}'.encode()),
        ("t", "hi", b"hi"),
        ("t", "", b""),
        ("t", None, None),
        ("b", b"\0", b"\0"),
        ("cls", 3, b"3"),
        ("cls", "007", b"007"),
        ("note.txt", 2.5, b"2.5"),
        ("json", {"b": [1, None]}, b'{"b": [1, null]}'),
        ("json", '{"b":1}', b'{"b":1}'),
        ("when", datetime.date(2024, 1, 2), b"2024-01-02"),
        ("price", Decimal("1.50"), b"1.50"),
        ("json", {"when": datetime.date(2024, 1, 2), "p": Decimal("1.50")}, b'{"when": "2024-01-02", "p": "1.50"}'),
    ],
)  # fmt: skip
def test_values(name, value, data):
    values = Columns().layout([name], "t.csv").values({name: value}, "k")
    assert values == ({} if data is None else {name: data})


@pytest.mark.parametrize(
    ("name", "value"),
    [("cls", 0.5), ("label", object()), ("json", float("inf")), ("json", [float("nan")]), ("json", [b"x"])],
)
def test_values_that_cannot_be_encoded(name, value):
    with pytest.raises(EncodeFailed, match=rf'sample "k".*"{name}"'):
        Columns().layout([name], "t.csv").values({name: value}, "k")


@pytest.mark.parametrize(
    ("columns", "names", "field"),
    [
        (Columns("absent"), ["a"], "key"),
        (Columns(files={"absent": "jpg"}), ["a"], "files"),
        (Columns(fields={"absent": "jpg"}), ["a"], "columns"),
        (Columns(), ["a", "a"], None),
        (Columns(files={"a": "jpg"}), ["a", "JPG"], None),
        (Columns("a"), ["a"], None),
        (Columns(), ["a b"], None),
        (Columns(), ["__index_level_0__"], None),
    ],
)
def test_invalid_choices(columns, names, field):
    with pytest.raises(UsageError, match=r"t\.csv") as caught:
        columns.layout(names, "t.csv")
    assert caught.value.field == field


def test_keys():
    layout = Columns("id", files={"img": "jpg"}).layout(["id", "img", "x"], "t.csv")
    assert layout.key_of({"id": 7}, "row 1") == "7"
    assert layout.file_names({"img": None}, "row 1") == {}
    assert layout.file_names({"img": "a.jpg"}, "row 1") == {"jpg": "a.jpg"}
    for value in ("", None):
        with pytest.raises(MissingField, match=r"t\.csv.*row 4"):
            layout.key_of({"id": value}, "row 4")
    for value in (True, b"x", [1]):
        with pytest.raises(DecodeFailed, match="row 4"):
            row_key({"id": value}, "id", "row 4", "t.csv")
    with pytest.raises(DecodeFailed, match=r"row 4.*'img'"):
        layout.file_names({"img": 3}, "row 4")


def test_the_key_column_is_found_by_its_name():
    assert Columns().layout(["x", "__key__", "@y"], "t.csv", find_key=True).key == "__key__"
    layout = Columns().layout(["x", "key", "__key__x", "@y"], "t.csv", find_key=True)
    assert (layout.key, layout.files) == ("key", {})
    with pytest.raises(UsageError, match=r"`key`, t\.csv"):
        Columns().layout(["x"], "t.csv", find_key=True)


def test_binary_data_is_not_json():
    with pytest.raises(EncodeFailed):
        encode_json({"a": b"x"})


ROW = {
    "key": "a",
    "n": 1,
    "score": 2.5,
    "t": "é",
    "label.cls": 3,
    "o": {"x": [1]},
    "json": [None],
    "none": None,
}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_pack_and_join_agree_on_what_a_column_becomes(tmp_path, suffix):
    path = tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist([ROW | {"b": b"\0\xff"}]), path)
    elif suffix == "jsonl":
        path.write_text(json.dumps(ROW))
    else:
        path.write_text('key,n,score,t,json\na,007,,é,"{""x"": 1}"\n')
    tarmac.pack(path, str(tmp_path / "packed.tar"), key="key")
    with tarmac.TarWriter(str(tmp_path / "in.tar")) as writer:
        writer.write({"__key__": "a", "old": b""})
    tarmac.join(str(tmp_path / "in.tar"), str(path), str(tmp_path / "joined.tar"))
    (packed,), (joined,) = (list(tarmac.read(f"{tmp_path}/{name}.tar")) for name in ("packed", "joined"))
    assert joined.pop("old") == b""
    assert {**joined, "__url__": ""} == {**packed, "__url__": ""}
    assert packed["n"] == (b"007" if suffix == "csv" else b"1")
