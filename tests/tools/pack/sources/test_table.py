"""Tables as sources: rows, keys and files."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarmac.errors import NotFound, UsageError
from tarmac.tools.pack.sources.source import Skipped
from tools.pack.trees import read_all, source, write_tree

ROWS = [{"id": "a", "img": "1.jpg", "cls": 1}, {"id": "b", "img": "2.jpg", "cls": 22}]


def write_table(path, rows=ROWS):
    suffix = path.suffix[1:]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        separator = "," if suffix == "csv" else "\t"
        path.write_text(
            "".join(separator.join(map(str, row)) + "\n" for row in [rows[0], *map(dict.values, rows)])
        )
    return path


@pytest.mark.parametrize("format", ["csv", "tsv", "jsonl", "parquet"])
def test_columns_become_fields_and_files(tmp_path, format):
    write_tree(tmp_path / "img", {"1.jpg": b"J1", "2.jpg": b"J2"})
    table = write_table(tmp_path / f"t.{format}")
    opened = source(table, key="id", files={"img": "jpg"}, base=str(tmp_path / "img"))
    samples, _ = read_all(pickle.loads(pickle.dumps(opened)), order=[1, 0])
    assert samples == [
        {"__key__": "b", "cls": b"22", "jpg": b"J2"}, {"__key__": "a", "cls": b"1", "jpg": b"J1"},
    ]  # fmt: skip
    numbered = source(table, fields={"cls": "index"}, needs_sizes=True)
    assert [item[:2] for item in numbered.items(Skipped())] == [(None, 1), (None, 2)]
    assert read_all(numbered)[0][1] == {"__key__": "000000001", "index": b"22"}


def test_sizes_include_files(tmp_path):
    write_tree(tmp_path, {"1.jpg": b"JPEG", "t.csv": b"@jpg,txt\n1.jpg,ab\n,c\n"})
    sized = source(tmp_path / "t.csv", needs_sizes=True)
    assert [size for _, size, _ in sized.items(Skipped())] == [6, 1]
    assert read_all(sized)[0][1] == {"__key__": "000000001", "txt": b"c"}


def test_files_alone(tmp_path):
    write_tree(tmp_path, {"1.jpg": b"J"})
    for name in ("t.csv", "t.parquet"):
        table = write_table(tmp_path / name, [{"@jpg": "1.jpg"}])
        assert read_all(source(table))[0] == [{"__key__": "000000000", "jpg": b"J"}]


def test_a_missing_file_is_an_error(tmp_path):
    write_tree(tmp_path, {"t.csv": b"@jpg,txt\n1.jpg,ab\n"})
    with pytest.raises(NotFound, match=r"1\.jpg"):
        read_all(source(tmp_path / "t.csv"))


def test_lines(tmp_path):
    write_tree(tmp_path, {"a.txt": b"one\n\ntwo"})
    samples, _ = read_all(source(tmp_path / "a.txt", "lines"), order=[2, 0, 1])
    assert [sample["txt"] for sample in samples] == [b"two", b"one", b""]
    with pytest.raises(UsageError, match=r"a\.txt"):
        source(tmp_path / "a.txt", "lines", key="k")
