"""Tables: what the columns become, and what is wrong with a row."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarmac.errors import DecodeFailed, EncodeFailed, UrlError
from tarmac.tools.join.table import Column, Table, is_table, json_bytes


@pytest.mark.parametrize(
    ("name", "typed", "values", "field", "encoded"),
    [
        ("cls", False, ["1", " 2 ", ""], "cls", [b"1", b"2", None]),
        ("cls", False, ["1", "x"], "cls.txt", [b"1", b"x"]),
        ("id", True, [1, None, 2**70], "id", [b"1", None, b"%d" % 2**70]),
        ("id", True, [1, 2.5], "id.json", [b"1", b"2.5"]),
        ("id", True, ["a", "b"], "id.txt", [b"a", b"b"]),
        ("id", True, [True], "id.json", [b"true"]),
        ("txt", False, ["1", ""], "txt", [b"1", b""]),
        ("txt", True, ["a", 1], "txt.json", [b'"a"', b"1"]),
        ("json", False, ['{"a": 1}', "", "3"], "json", [b'{"a": 1}', None, b"3"]),
        ("json", False, ["{", "3"], "json.txt", [b"{", b"3"]),
        ("json", True, ["{", {"b": [1]}], "json", [b'"{"', b'{"b": [1]}']),
        ("caption", False, ["é", "1"], "caption.txt", ["é".encode(), b"1"]),
        ("score", True, [0.5], "score.json", [b"0.5"]),
        ("jpg", True, [b"\xff\xd8", None], "jpg", [b"\xff\xd8", None]),
        ("jpg", False, ["a.jpg"], "jpg.txt", [b"a.jpg"]),
        ("when", True, [datetime.date(2024, 1, 2)], "when.json", [b'"2024-01-02"']),
        ("price", True, [Decimal("1.50")], "price.json", [b'"1.50"']),
    ],
)
def test_what_a_column_becomes(name, typed, values, field, encoded):
    column = Column(name, typed)
    for value in values:
        column.see(value)
    assert column.field == field
    assert [column.encode(value) for value in values] == encoded


def test_binary_data_is_no_json():
    with pytest.raises(EncodeFailed, match="binary"):
        json_bytes({"a": b"x"})


def rows(path, key=""):
    return list(Table([str(path)], [str(path)], key).rows())


def test_separated(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(
        '\ufeffKey,key,"a b"\r\n1,x,"two\nlines, one cell"\r\n\r\n2,y,é\r\n'.encode().replace(b"Key,", b"K,")
    )
    assert rows(path) == [("x", {"k": "1", "a b": "two\nlines, one cell"}), ("y", {"k": "2", "a b": "é"})]
    assert rows(path, "K")[0] == ("1", {"key": "x", "a b": "two\nlines, one cell"})
    path = tmp_path / "a.tsv"
    path.write_text('__key__\tcaption\na\tsay "hi\nb\t"\n')
    assert rows(path) == [("a", {"caption": 'say "hi'}), ("b", {"caption": '"'})]


@pytest.mark.parametrize(
    ("name", "content", "error", "match"),
    [
        ("a.csv", b"key,x\na\n", DecodeFailed, "line 2 has 1 cells, the first line 2"),
        ("a.csv", b"key,x\na,\xff\n", DecodeFailed, "utf-8"),
        ("a.csv", b'key,x\na,"open\n', DecodeFailed, "line"),
        ("a.csv", b"key,x,x\na,1,2\n", UrlError, "same name"),
        ("a.csv", b"key,X,x\na,1,2\n", UrlError, "but for capitals.*: X, x.*--as json"),
        ("a.jsonl", b'{"key": "a", "Score": 1, "n": 0, "score": 2}\n', UrlError, "capitals.*: Score, score"),
        ("a.csv", b"name,x\na,1\n", UrlError, "no column key or __key__.*--key COLUMN; there is name, x"),
        ("a.csv", b"key,x\n,1\n", DecodeFailed, "row 1 has no key"),
        ("a.jsonl", b'{"key": null}\n', DecodeFailed, "row 1 has no key"),
        ("a.jsonl", b'{"key": true}\n', DecodeFailed, "row 1 has no key"),
        ("a.jsonl", b'{"key": "a"}\n\n{"key"\n', DecodeFailed, "line 3 is no JSON"),
        ("a.jsonl", b"[1]\n", DecodeFailed, "line 1 is no object"),
        ("a.parquet", b"PAR1", DecodeFailed, "Parquet"),
    ],
)
def test_what_is_refused(tmp_path, name, content, error, match):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(error, match=match) as caught:
        rows(path)
    assert caught.value.url == str(path)


def test_keys_may_be_numbers_and_rows_may_differ(tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_text('{"key": 7, "a": 1}\n{"key": "8", "B": "x"}')
    table = Table([str(path)], [str(path)])
    table.look()
    assert list(table.rows()) == [("7", {"a": 1}), ("8", {"b": "x"})]
    assert [column.field for column in table.columns.values()] == ["a.json", "b.txt"]
    assert list(table.whole()) == [("7", {"key": 7, "a": 1}), ("8", {"key": "8", "B": "x"})]


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {"key": ["a", "b"], "score": [1.5, float("nan")], "tags": [["x"], None], "png": [b"\x89", None]}
    pq.write_table(pa.table(columns), path)
    assert rows(path) == [
        ("a", {"score": 1.5, "tags": ["x"], "png": b"\x89"}),
        ("b", {"score": None, "tags": None, "png": None}),
    ]


def test_names():
    tables = ["a.csv", "A.TSV", "s3://b/x.jsonl", "http://h/x.parquet?token=1", "x.csv.gz", "x.ndjson.zst"]
    assert [is_table(name) for name in tables] == [True] * 6
    assert [is_table(name) for name in ("a.tar", "a.json", "csv", "-")] == [False] * 4


def test_columns_of_parquet_that_are_called_alike(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([pa.array(["a"]), pa.array([1]), pa.array([2])], ["key", "x", "x"]), path)
    with pytest.raises(UrlError, match="same name"):
        rows(path)
    pq.write_table(pa.table([pa.array(["a"]), pa.array([1]), pa.array([2])], ["key", "X", "x"]), path)
    with pytest.raises(UrlError, match="but for capitals"):
        rows(path)
