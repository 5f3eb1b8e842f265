"""Parquet, in any order, with many row groups."""

from __future__ import annotations

import os
import pickle
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarmac.errors import DecodeFailed, ObjectChanged, UrlError
from tarmac.tools.pack.sources.columns import Columns
from tarmac.tools.pack.sources.parquet import Parquet
from tarmac.tools.pack.sources.source import Skipped
from tools.pack.sources.packing import grow, near, read_all


def write(path, columns, group):
    pq.write_table(pa.table(columns), path, row_group_size=group)
    return path


@pytest.mark.parametrize("group", [3, 1000])
@pytest.mark.parametrize("mixed", [False, True])
def test_rows(tmp_path, group, mixed):
    grow(tmp_path, {"x.jpg": b"J"})
    columns = {"id": list(range(50)), "cls": [n if n % 5 else None for n in range(50)], "b": [b"\0"] * 50}
    columns |= {"img": ["x.jpg"] * 49 + [None], "json": [{"n": n} for n in range(50)]}
    path = write(tmp_path / "t.parquet", columns, group)
    source = Parquet(str(path), near(path), Columns("id", {"img": "jpg"}))
    order = list(range(50))
    if mixed:
        random.Random(1).shuffle(order)
    order = order[5:31]
    samples, _ = read_all(source, order=order)
    for number, sample in zip(order, samples, strict=True):
        wanted = {"__key__": str(number), "b": b"\0", "json": b'{"n": %d}' % number}
        wanted |= ({"cls": b"%d" % number} if number % 5 else {}) | ({"jpg": b"J"} if number < 49 else {})
        assert sample == wanted


def test_numbered_rows_are_counted_without_reading(tmp_path):
    path = write(tmp_path / "t.parquet", {"txt": ["a", "bb"]}, 1)
    source = Parquet(str(path), near(path))
    assert read_all(source)[0][1] == {"__key__": "000000001", "txt": b"bb"}
    assert read_all(pickle.loads(pickle.dumps(source)))[0] == read_all(source)[0]
    sized = Parquet(str(path), near(path), Columns(sized=True))
    assert [item[1] for item in sized.items(Skipped())] == [1, 2]


def test_mistakes(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 this is none")
    with pytest.raises(DecodeFailed, match=r"t\.parquet"):
        read_all(Parquet(str(tmp_path / "t.parquet"), near(tmp_path / "t.parquet")))
    path = write(tmp_path / "u.parquet", {"txt": ["a"]}, 1)
    with pytest.raises(UrlError, match="no column 'id'"):
        read_all(Parquet(str(path), near(path), Columns("id")))


def test_a_table_that_was_replaced(tmp_path):
    path = write(tmp_path / "t.parquet", {"txt": ["a", "b"]}, 1)
    source = Parquet(str(path), near(path))
    wheres = [where for _, _, where in source.items(Skipped())]
    source = pickle.loads(pickle.dumps(source))
    write(path, {"txt": ["x", "y"]}, 1)
    os.utime(path, ns=(0, 10**9))
    with (
        pytest.raises(ObjectChanged, match=r"t\.parquet: the table has changed"),
        source.opened(wheres, {}) as load,
    ):
        load("0", wheres[0])
