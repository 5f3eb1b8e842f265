"""The columns of tables, and which samples go into which file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tarmac.errors import SampleError
from tarmac.tools.export import columns
from tarmac.tools.export.destination import Target
from tools.export.samples import odd, run, write


@pytest.mark.parametrize(
    ("target", "by_shard"),
    [
        (Target("x.csv"), False),
        (Target("x-{i}.csv"), True),
        (Target("x-{i}.csv", joined=True), False),
        (Target("x-{i}.csv", max_samples=5), False),
        (Target("{name}.csv"), True),
        (Target("dir/", extension=".csv"), True),
    ],
)
def test_a_file_for_each_shard(target, by_shard):
    assert target.by_shard is by_shard
    assert Target("dir/", extension=".csv").name(0, "a") == "dir/a.csv"


def header(path):
    return Path(path).read_text().splitlines()[0].split("\t")


def test_columns_of_indexed_shards(tmp_path):
    first = odd(tmp_path, [("a.txt", b""), ("a.cls", b"1")], "a.tar")
    second = odd(tmp_path, [("b.cls", b"2"), ("b.json", b"{}")], "b.tar")
    run([first, second], "tsv", tmp_path / "x.tsv")
    assert header(tmp_path / "x.tsv") == ["__key__", "txt", "cls", "json"]
    run([first, second], "tsv", tmp_path / "y.tsv", drop_fields=["cls"])
    assert header(tmp_path / "y.tsv") == ["__key__", "txt", "json"]


def compressed(path):
    Path(f"{path}.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    return f"{path}.gz"


def test_columns_of_streams(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "MAX_SAMPLES", 2)
    shard = odd(tmp_path, [("a.txt", b""), ("b.cls", b"2"), ("c.json", b"{}")])
    with pytest.raises(SampleError, match=r'sample "c".*"json"'):
        run(compressed(shard), "tsv", tmp_path / "x.tsv")
    run(compressed(shard), "tsv", tmp_path / "y.tsv", fields=["txt"], missing="skip")
    assert header(tmp_path / "y.tsv") == ["__key__", "txt"]


def test_a_command_is_run_once(tmp_path):
    (shard,) = write(tmp_path, [3])
    command = f"pipe:echo >> {tmp_path}/runs; cat {shard}"
    run(command, "tsv", tmp_path / "x.tsv", drop_fields=["png"])
    assert (tmp_path / "runs").read_text() == "\n"
    rows = (tmp_path / "x.tsv").read_text().splitlines()[1:]
    assert [json.loads(row.split("\t")[3].replace("\\\\", "\\"))["n"] for row in rows] == [0, 1, 2]
