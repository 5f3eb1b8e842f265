"""Export: many files, resumed jobs, selected samples, streams and stores."""

from __future__ import annotations

import base64
import errno
import gzip
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness.crash import Forked, survive
from harness.faultfs import Fault, faulty
from harness.servers import required, seaweed_s3
from tarmac.errors import DiskFull, JobMismatch, UsageError
from tarmac.storage import Cache, StorageOptions, open_read, open_write
from tarmac.tools.export import FORMATS
from tools.export.samples import odd, run, write


def keys(*paths):
    return [json.loads(line)["__key__"] for path in paths for line in Path(path).read_bytes().splitlines()]


def numbered(*numbers):
    return [f"k/{number:03d}" for number in numbers]


def test_resume(tmp_path):
    urls = write(tmp_path, [2, 2])
    pattern = tmp_path / "x-{i}.jsonl"
    report = run(urls, "jsonl", pattern)
    assert (report.done, report.kept, report.written) == (2, 0, 4)
    (tmp_path / "x-1.jsonl").unlink()
    report = run(urls, "jsonl", pattern)
    assert (report.done, report.kept, report.written) == (1, 1, 4)
    assert keys(tmp_path / "x-0.jsonl", tmp_path / "x-1.jsonl") == numbered(0, 1, 2, 3)
    with pytest.raises(JobMismatch, match="select"):
        run(urls, "jsonl", pattern, fields=["cls"])
    report = run(urls, "jsonl", pattern, fields=["cls"], overwrite=True)
    assert report.done == 2


def test_existing_files_are_not_replaced(tmp_path):
    urls = write(tmp_path, [1])
    for to in ("jsonl", "sqlite"):
        target = tmp_path / f"x.{to}"
        target.write_bytes(b"mine")
        with pytest.raises(UsageError, match=str(target)):
            run(urls, to, target)
        assert target.read_bytes() == b"mine"
        run(urls, to, target, overwrite=True)
        assert target.read_bytes() != b"mine"


@pytest.mark.parametrize("to", [name for name, known in FORMATS.items() if known.destination is None])
def test_no_samples(tmp_path, to):
    report = run(odd(tmp_path, []), to, tmp_path / f"x.{to}")
    assert (report.read, report.written, report.ok) == (0, 0, True)
    assert (tmp_path / f"x.{to}").exists()
    if to == "parquet":
        assert pq.read_table(tmp_path / "x.parquet").to_pydict() == {"__key__": []}


def test_maximum_sizes(tmp_path):
    urls = write(tmp_path, [3, 4])
    run(urls, "jsonl", tmp_path / "x-{i}.jsonl", max_samples=5)
    assert keys(tmp_path / "x-0.jsonl") == numbered(*range(5))
    assert keys(tmp_path / "x-1.jsonl") == numbered(5, 6)
    run(urls, "jsonl", tmp_path / "y-{i}.jsonl", max_bytes=1)
    assert len(list(tmp_path.glob("y-*.jsonl"))) == 7
    with pytest.raises(UsageError, match=r"z\.jsonl"):
        run(urls, "jsonl", tmp_path / "z.jsonl", max_samples=5)


def test_names_of_shards_and_splits(tmp_path):
    urls = write(tmp_path, [3, 4])
    run(urls, "jsonl", f"{tmp_path}/by/")
    assert keys(tmp_path / "by/s1.jsonl") == numbered(3, 4, 5, 6)
    run(urls, "jsonl", tmp_path / "{split}.jsonl", split={"a": 0.5, "b": 0.5})
    both = [keys(tmp_path / f"{name}.jsonl") for name in "ab"]
    assert sorted(both[0] + both[1]) == numbered(*range(7))
    assert all(both)
    with pytest.raises(UsageError, match=r"\{split\}"):
        run(urls, "jsonl", tmp_path / "c.jsonl", split={"a": 0.5, "b": 0.5})


def test_selected_samples(tmp_path):
    urls = write(tmp_path, [3, 4])
    (tmp_path / "keys").write_text("k/001\nk/004\nk/006\n")
    selected = {"keys": tmp_path / "keys", "where": "cls > 1", "slice": slice(-1, None), "fields": ["cls"]}
    run(urls, "jsonl", tmp_path / "x.jsonl", **selected)
    assert (tmp_path / "x.jsonl").read_text() == '{"__key__": "k/006", "cls": 6}\n'


def test_dry_run(tmp_path):
    report = run(write(tmp_path, [1, 1]), "jsonl", tmp_path / "x-{i}.jsonl", dry_run=True)
    assert report.units == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s0.tar", "s1.tar"]


@pytest.mark.parametrize(
    ("to", "output", "what"),
    [
        ("nonsense", "x", "`format`.*nonsense"),
        ("parquet", "-", "stream"),
        ("jsonl", "pipe:cat", "pipe:cat"),
        ("jsonl", "x.jsonl.gz", r"x\.jsonl\.gz"),
    ],
)
def test_invalid_outputs(tmp_path, to, output, what):
    with pytest.raises(UsageError, match=what):
        run(write(tmp_path, [1]), to, output)


def test_compressed_shards_are_streamed(tmp_path):
    urls = []
    for url in write(tmp_path, [2, 3]):
        urls.append(f"{url}.gz")
        Path(urls[-1]).write_bytes(gzip.compress(Path(url).read_bytes()))
    run(urls, "jsonl", tmp_path / "x.jsonl", slice=slice(1, 4))
    assert keys(tmp_path / "x.jsonl") == numbered(1, 2, 3)
    run(urls, "parquet", tmp_path / "x-{i}.parquet", jobs=2)
    assert pq.read_table(tmp_path / "x-1.parquet")["__key__"].to_pylist() == numbered(2, 3, 4)
    assert run(urls, "parquet", tmp_path / "x-{i}.parquet").kept == 2
    run(urls, "hf", tmp_path / "hf")
    assert len(os.listdir(tmp_path / "hf/data")) == 2
    with pytest.raises(UsageError, match="`max_samples`"):
        run(urls, "jsonl", tmp_path / "y-{i}.jsonl", max_samples=2)
    for more in ({"split": {"a": 0.5, "b": 0.5}}, {"slice": slice(1, None)}):
        with pytest.raises(UsageError, match="`only`"):
            run(urls, "jsonl", tmp_path / "y-{i}.jsonl", **more)


def test_killed_and_resumed(tmp_path):
    urls = write(tmp_path, [3] * 8)
    run(urls, "parquet", tmp_path / "complete" / "x-{i}.parquet")
    complete = {path.name: path.read_bytes() for path in (tmp_path / "complete").glob("*.parquet")}
    round_ = iter(range(1000))
    folder: list[Path] = []

    def strike(seed):
        folder[:] = [tmp_path / f"killed{next(round_)}"]
        child = Forked(lambda: run(urls, "parquet", folder[0] / "x-{i}.parquet"))
        return child.crash(seed, 0.08)

    def check():
        run(urls, "parquet", folder[0] / "x-{i}.parquet")
        written = {path.name: path.read_bytes() for path in folder[0].iterdir() if path.is_file()}
        assert written == complete

    survive(8, strike, check)


@pytest.mark.parametrize("to", ["jsonl", "parquet", "tfrecord"])
def test_a_full_disk(tmp_path, to):
    urls = write(tmp_path, [3])
    run(urls, to, tmp_path / f"x.{to}", dry_run=True)  # so that there is an index
    with faulty(Fault(2, errno.ENOSPC, ("write",))), pytest.raises(DiskFull, match=f"x.{to}"):
        run(urls, to, tmp_path / f"x.{to}")  # the first write is that of the ledger
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tarmac", "s0.tar"]
    assert run(urls, to, tmp_path / f"x.{to}").written == 3


def test_shards_with_equal_names(tmp_path):
    urls = write(tmp_path, [1])
    (tmp_path / "other").mkdir()
    urls += write(tmp_path / "other", [1])
    with pytest.raises(UsageError, match=r"s0\.jsonl"):
        run(urls, "jsonl", f"{tmp_path}/out/")


@pytest.fixture(scope="module")
def s3():
    with required(seaweed_s3()) as server:
        server.make_bucket("shards")
        yield StorageOptions(config=server.config())


def test_stores(tmp_path, s3):
    for number, url in enumerate(write(tmp_path, [2, 3])):
        sink = open_write(f"s3://shards/in-{number}.tar", s3)
        sink.write(Path(url).read_bytes())
        sink.commit()

    def content(url):
        with open_read(url, s3) as source:
            return b"".join(iter(lambda: source.read(1 << 20), b""))

    shards = "s3://shards/in-{0..1}.tar"
    run(shards, "jsonl", "s3://shards/out/x-{i}.jsonl", storage=s3)
    lines = b"".join(content(f"s3://shards/out/x-{number}.jsonl") for number in range(2)).splitlines()
    assert [json.loads(line)["__key__"] for line in lines] == numbered(*range(5))
    assert run(shards, "jsonl", "s3://shards/out/x-{i}.jsonl", storage=s3).kept == 2

    run(shards, "parquet", "s3://shards/out/x.parquet", storage=s3, cache=Cache(tmp_path / "cache"))
    (tmp_path / "x.parquet").write_bytes(content("s3://shards/out/x.parquet"))
    assert pq.read_table(tmp_path / "x.parquet")["cls"].to_pylist() == list(range(5))

    run(shards, "sqlite", "s3://shards/out/x.sqlite", storage=s3)
    assert content("s3://shards/out/x.sqlite").startswith(b"SQLite format 3")
    run(shards, "jsonl", tmp_path / "here.jsonl", storage=s3)
    assert keys(tmp_path / "here.jsonl") == numbered(*range(5))


def test_big_values(tmp_path):
    big = bytes(range(256)) * 40_000
    shard = odd(tmp_path, [("a.bin", big), ("a.txt", b"x" * 3_000_000), ("b.bin", b""), ("b.txt", b"")])
    run(shard, "jsonl", tmp_path / "x.jsonl")
    first = json.loads((tmp_path / "x.jsonl").read_bytes().splitlines()[0])
    assert base64.b64decode(first["bin"]) == big
    run(shard, "parquet", tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").to_pydict()["bin"] == [big, b""]
    run(shard, "sqlite", tmp_path / "x.sqlite")
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as database:
        assert database.execute("SELECT bin, txt FROM samples").fetchall() == [
            (big, "x" * 3_000_000),
            (b"", ""),
        ]
