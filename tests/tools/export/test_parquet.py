"""Parquet files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarmac.errors import EncodeFailed
from tarmac.tools.export import parquet
from tools.export.samples import TEXT, fields, odd, run, write


def test_every_kind_of_field(tmp_path):
    run(write(tmp_path, [2, 1]), "parquet", tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    kinds = {
        "__key__": pa.string(),
        "cls": pa.int64(),
        "png": pa.binary(),
        "txt": pa.string(),
        "json": pa.string(),
    }
    assert table.schema.equals(pa.schema(kinds))
    assert table.schema.metadata is None
    for number, row in enumerate(table.to_pylist()):
        assert row["__key__"] == f"k/{number:03d}"
        assert (row["cls"], row["txt"]) == (number, f"{TEXT}{number}")
        assert row["png"] == fields(number)["png"]


def test_rows_come_in_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MAX_ROWS", 4)
    run(write(tmp_path, [10]), "parquet", tmp_path / "x.parquet")
    file = pq.ParquetFile(tmp_path / "x.parquet")
    assert [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)] == [4, 4, 2]
    monkeypatch.setattr(parquet, "MAX_BYTES", 1)
    run(str(tmp_path / "s0.tar"), "parquet", tmp_path / "y.parquet")
    assert pq.ParquetFile(tmp_path / "y.parquet").num_row_groups == 10
    file.close()


def test_files_are_the_same_for_any_number_of_processes(tmp_path):
    urls = write(tmp_path, [3, 0, 2])
    for jobs in (1, 2):
        report = run(urls, "parquet", tmp_path / f"{jobs}" / "x-{i:02d}.parquet", jobs=jobs)
        assert (report.units, report.written) == (3, 5)
    one = {path.name: path.read_bytes() for path in (tmp_path / "1").glob("*.parquet")}
    two = {path.name: path.read_bytes() for path in (tmp_path / "2").glob("*.parquet")}
    assert one == two
    assert sorted(one) == ["x-00.parquet", "x-01.parquet", "x-02.parquet"]
    tables = [pq.read_table(tmp_path / "1" / name) for name in sorted(one)]
    assert [len(table) for table in tables] == [3, 0, 2]
    assert tables[0].schema.equals(tables[1].schema)


def test_a_field_that_is_missing_is_null(tmp_path):
    shard = odd(tmp_path, [("a.txt", b"x"), ("b.cls", b"1")])
    run(shard, "parquet", tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {
        "__key__": ["a", "b"],
        "txt": ["x", None],
        "cls": [None, 1],
    }


def test_selected_fields_are_the_only_columns(tmp_path):
    run(
        write(tmp_path, [2]),
        "parquet",
        tmp_path / "x.parquet",
        fields={"label": "cls"},
        key=False,
    )
    assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {"label": [0, 1]}


def test_a_value_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_MAX_VALUE", 5)
    shard = odd(tmp_path, [("a.bin", b"12345"), ("b.bin", b"123456")])
    with pytest.raises(EncodeFailed, match=r'sample "b"'):
        run(shard, "parquet", tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()
