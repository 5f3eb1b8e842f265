"""Tables: rows and their positions, in any order, and what is wrong with a row."""

from __future__ import annotations

import csv
import os
import pickle
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarmac.errors import DecodeFailed, ObjectChanged, UrlError
from tarmac.tools.localcopy import ensure_local
from tarmac.tools.tables import TABLES, table_format


def table(path, content=None, format=None):
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return TABLES[format or table_format(str(path))](str(path), ensure_local(str(path), "/nowhere"))


def read(source, order=None, columns=None):
    """Read the rows of a table again, in some order, in another process as it were."""
    columns = source.names if columns is None else columns
    positions = [position for position, _ in source.rows(columns)]
    positions = positions if order is None else [positions[number] for number in order]
    with pickle.loads(pickle.dumps(source)).reader(positions, columns) as read_row:
        return [dict(read_row(position)) for position in positions]


def test_csv_cells_stay_as_they_are_written(tmp_path):
    rows = [["a", "007", 'say "hi",\nthen\r\ngo\u2028on'], ["b", "1.50", ""], ["c", "-0", "é, " * 100_000]]
    with open(tmp_path / "t.csv", "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["id", "cls", "txt"], *rows])
    source = table(tmp_path / "t.csv")
    assert [list(row.values()) for _, row in source.rows()] == rows
    assert [list(row.values()) for row in read(source, [2, 0, 1])] == [rows[2], rows[0], rows[1]]


def test_tsv_has_no_quotes(tmp_path):
    source = table(tmp_path / "t.tsv", '@jpg\ttxt\n1.jpg\ta "quote\n\n\tx\n"\t"\n')
    assert [tuple(row.values()) for row in read(source)] == [("1.jpg", 'a "quote'), ("", "x"), ('"', '"')]


def test_json_objects_may_differ(tmp_path):
    source = table(tmp_path / "t.ndjson", '{"id": 7, "a": [1, null]}\n\n{"id": "b", "B": "é"}')
    assert source.names == ["id", "a", "B"]
    assert read(source, [1, 0]) == [{"id": "b", "B": "é"}, {"id": 7, "a": [1, None]}]


def test_text_of_parquet_that_is_not_utf_8_is_bytes(tmp_path):
    cells = pa.array([b"a", b"\xff", None, b"b"]).view(pa.string())
    columns = {"txt": cells, "name": cells.dictionary_encode(), "n": [1, 2, 3, 4]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    rows = [{"txt": each, "name": each, "n": n} for n, each in enumerate(["a", b"\xff", None, "b"], 1)]
    source = table(tmp_path / "t.parquet")
    assert [dict(row) for _, row in source.rows()] == rows
    assert read(source, [2, 1, 0]) == [rows[2], rows[1], rows[0]]
    assert list(source.span((1,), 2, source.names)) == rows[1:3]
    nested = pa.ListArray.from_arrays([0, 1, 2, 2, 3], pa.array([b"a", b"\xff", b"b"]).view(pa.string()))
    pq.write_table(pa.table({"txt": nested}), tmp_path / "n.parquet")
    with pytest.raises(DecodeFailed, match="'txt'") as caught:
        list(table(tmp_path / "n.parquet").rows())
    assert caught.value.location == str(tmp_path / "n.parquet")


def test_lines_keep_blank_ones(tmp_path):
    source = table(tmp_path / "t", b"one\r\n\n\xff", format="lines")
    assert [row["txt"] for row in read(source, [2, 1, 0])] == [b"\xff", b"", b"one"]


@pytest.mark.parametrize("group", [3, 1000])
@pytest.mark.parametrize("shuffled", [False, True])
def test_parquet_row_groups(tmp_path, group, shuffled):
    columns = {"id": list(range(50)), "b": [b"\0"] * 50, "json": [{"n": n} for n in range(50)]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=group)
    order = list(range(50))
    if shuffled:
        random.Random(1).shuffle(order)
    source = table(tmp_path / "t.parquet")
    rows = read(source, order[5:31])
    assert rows == [{"id": number, "b": b"\0", "json": {"n": number}} for number in order[5:31]]
    assert read(source, [7, 3], ["id"]) == [{"id": 7}, {"id": 3}]
    assert [position for position, _ in source.rows([])] == [(number,) for number in range(50)]


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("t.csv", "a,b\n1,2\n\n1\n", "line 4"),
        ("t.csv", "a,b\n1,2\n1,2,3\n", "line 3"),
        ("t.csv", 'a,b\n1,2\n"1,2\n', "line 3"),
        ("t.csv", b"a,b\n1,2\n1,\xff\n", "line 3"),
        ("t.tsv", "a\tb\n1\n", "line 2"),
        ("t.jsonl", '{"a": 1}\n\n{"a"', "line 3"),
        ("t.jsonl", '{"a": 1}\n[1]\n', "line 2"),
        ("t.parquet", b"PAR1 this is not Parquet", "invalid Parquet"),
    ],
)
def test_invalid_rows(tmp_path, name, content, where):
    with pytest.raises(DecodeFailed, match=where) as caught:
        read(table(tmp_path / name, content))
    assert caught.value.url == str(tmp_path / name)


@pytest.mark.parametrize(("name", "content"), [("t.csv", ""), ("t.jsonl", "\n")])
def test_empty_tables(tmp_path, name, content):
    with pytest.raises(UrlError, match=name):
        _ = table(tmp_path / name, content).names


def rewrite(path, data):
    """Write a file with another modification time, however quick the test is."""
    path.write_bytes(data)
    os.utime(path, ns=(0, 10**9))


@pytest.mark.parametrize(
    ("format", "before", "after"),
    [
        ("lines", b"one\ntwo\n", b"uno\ndos\n"),
        ("lines", b"one\ntwo\n", b"one\n"),
        ("csv", b"id,txt\na,one\n", b"id,cap\nb,two\n"),
        ("jsonl", b'{"txt": "one"}\n', b'{"txt": "two"}\n'),
    ],
)
def test_a_table_that_was_replaced(tmp_path, format, before, after):
    path = tmp_path / "t"
    source = table(path, before, format)
    positions = [position for position, _ in source.rows()]
    rewrite(path, after)
    with pytest.raises(ObjectChanged, match=str(path)), source.reader(positions, ["txt"]):
        pass
    path.unlink()
    with pytest.raises(ObjectChanged), source.reader(positions, ["txt"]):
        pass


def test_a_parquet_file_that_was_replaced(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"txt": ["a", "b"]}), path)
    source = table(path)
    positions = [position for position, _ in source.rows()]
    pq.write_table(pa.table({"txt": ["x", "y"]}), path)
    os.utime(path, ns=(0, 10**9))
    with pytest.raises(ObjectChanged, match=r"t\.parquet"), source.reader(positions, ["txt"]):
        pass


def test_a_table_that_is_written_to_while_it_is_read(tmp_path):
    source = table(tmp_path / "t", b"one\ntwo\n", "lines")
    (first, _), (second, _) = source.rows()
    with pytest.raises(ObjectChanged), source.reader([first, second], ["txt"]) as read_row:
        assert read_row(first)["txt"] == b"one"
        rewrite(tmp_path / "t", b"one\ndos\n")
        read_row(second)


def test_formats_by_name():
    names = ["a.csv", "A.TSV", "s3://b/x.jsonl", "http://h/x.parquet?token=1", "x.csv.gz", "x.ndjson.zst"]
    assert list(map(table_format, names)) == ["csv", "tsv", "jsonl", "parquet", "csv", "jsonl"]
    assert [table_format(name) for name in ("a.tar", "a.json", "csv", "-")] == [None] * 4
