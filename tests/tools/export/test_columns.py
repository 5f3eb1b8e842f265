"""The columns of tables, and which samples go into which file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tarmac.errors import SampleError
from tarmac.tools.export import columns
from tarmac.tools.export.destination import Destination
from tarmac.tools.export.formats import FORMATS
from tools.export.samples import odd, run, write


def to(output, **options):
    return Destination.to(output, format=FORMATS["csv"], **options)


@pytest.mark.parametrize(
    ("target", "by_shard"),
    [
        (to("x.csv"), False),
        (to("x-{i}.csv"), True),
        (to("x-{i}.csv", joined=True), False),
        (to("x-{i}.csv", max_samples=5), False),
        (to("{name}.csv"), True),
        (to("dir/"), True),
    ],
)
def test_a_file_for_each_shard(target, by_shard):
    assert target.by_shard is by_shard
    assert to("dir/").name(0, "a") == "dir/a.csv"


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


@pytest.mark.processes
def test_a_command_is_run_once(tmp_path):
    (shard,) = write(tmp_path, [3])
    command = f"pipe:echo >> {tmp_path}/runs; cat {shard}"
    run(command, "tsv", tmp_path / "x.tsv", drop_fields=["png"])
    assert (tmp_path / "runs").read_text() == "\n"
    rows = (tmp_path / "x.tsv").read_text().splitlines()[1:]
    assert [json.loads(row.split("\t")[3].replace("\\\\", "\\"))["n"] for row in rows] == [0, 1, 2]
