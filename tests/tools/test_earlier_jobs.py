"""Jobs that an earlier version has run are complete: the same call finds nothing to do.

data/earlier-jobs.tar.gz holds inputs, outputs and ledgers of the first version.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import tarmac

JOBS = Path(__file__).parent / "data" / "earlier-jobs.tar.gz"
IN = ["in-0.tar", "in-1.tar"]


@pytest.fixture
def earlier(tmp_path, monkeypatch):
    with tarfile.open(JOBS) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)


CALLS = {
    "copy": lambda: tarmac.copy(
        IN, "copy/x-{i}.tar", max_samples=2, shuffle=True, seed=3, keys="keys.txt", where="cls < 4",
        fields={"text": "txt", "cls": "cls"}, rekey="k-{key}",
    ),
    "copy splits": lambda: tarmac.copy(
        IN, "parts/{split}-{i}.tar", split={"a": 0.5, "b": 0.5}, slice_shard=slice(3), slice=slice(0, 5),
        drop_fields=["cls"], post_cmd="true", index=True,
    ),
    "copy a mixture": lambda: tarmac.copy(["in-0.tar", "in-1.tar"], "mix/x-{i}.tar", weights=[2, 1]),
    "copy interleaved": lambda: tarmac.copy(IN, "turns/x-{i}.tar", interleave=2),
    "copy a stream": lambda: tarmac.copy("in-0.tar.gz", "stream/x-{i}.tar", max_samples=2, where="cls < 4"),
    "copy by shard": lambda: tarmac.copy(IN, "each/", manifest="each.json"),
    "sort": lambda: tarmac.sort(IN, "sort/x-{i}.tar", by="cls", type="int", reverse=True, max_samples=3),
    "map": lambda: tarmac.map(IN, "map/", command="echo new > sample.new"),
    "join": lambda: tarmac.join("in-0.tar", "in-0.tar", "join/", prefix="b."),
    "pack": lambda: tarmac.pack("raw", "pack/x-{i}.tar", max_samples=2, shuffle=True, seed=1, rekey="{i:04d}"),
    "pack a table": lambda: tarmac.pack("more.csv", "table/x-{i}.tar", key="key", columns={"extra": "txt"}),
    "pack splits": lambda: tarmac.pack("raw", "packparts/{split}-{i}.tar", split={"a": 0.5, "b": 0.5}),
    "export jsonl": lambda: tarmac.export(
        IN, "export/x-{i}.jsonl", "jsonl", max_samples=2, kinds={"txt": "text", "cls": "int"}
    ),
    "export files": lambda: tarmac.export(IN, "exportdir/", "dir"),
    "export parquet": lambda: tarmac.export(IN, "pq/x-{i}.parquet", "parquet", max_samples=3),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_left_to_do(earlier, call):
    report = CALLS[call]()
    assert report.units > 0
    assert (report.done, report.kept) == (0, report.units)
