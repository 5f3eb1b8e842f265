"""Gather: any shards become indexed samples."""

from __future__ import annotations

import errno
import gzip
import os

import numpy as np
import pytest

from harness.servers import required, seaweed_s3
from harness.shards import plain
from tarmac import sort
from tarmac.errors import DiskFull, JobMismatch, NotFound, WriteError
from tarmac.indexing.build import IndexOptions
from tarmac.indexing.manifest import Inputs
from tarmac.storage import StorageOptions, WriteOptions, open_write
from tarmac.tools.gather import gather, unpack
from tarmac.tools.options import Access
from tarmac.tools.select import Select
from tarmac.tools.workdir import disk_errors, work_directory, write_integers
from tools.shards import content

SPLIT = plain([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")])


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path_factory.mktemp("home")))


def test_every_kind(tmp_path):
    (tmp_path / "plain.tar").write_bytes(plain())
    (tmp_path / "packed.tar.gz").write_bytes(gzip.compress(SPLIT))
    (tmp_path / "split.tar").write_bytes(SPLIT)
    urls = [str(tmp_path / name) for name in ("plain.tar", "packed.tar.gz", "split.tar")]
    with work_directory("sort", tmp_path) as home:
        gathered = gather(Inputs(urls), home, Select(), Access())
        shards = gathered.manifest.shards
        assert [shard.samples for shard in shards] == [3, 2, 2]
        assert shards[0].url == urls[0]
        assert os.path.basename(shards[1].url) == "packed.tar"  # the name that its output gets
        assert gathered.origins == {shards[1].url: urls[1]}
        assert shards[2].url == urls[2]
        assert [sample["__key__"] for sample in gathered.dataset()] == ["s0", "s1", "s2", "a", "b", "a", "b"]
        with pytest.raises(NotFound):
            gather(Inputs([str(tmp_path / "absent.tar")]), home, Select(), Access())
    assert sorted(os.listdir(tmp_path)) == ["packed.tar.gz", "plain.tar", "split.tar"]


def test_shards_of_a_store_are_put_together_too(tmp_path):
    with required(seaweed_s3()) as server:
        server.make_bucket("shards")
        storage = StorageOptions(config=server.config())
        for name, content in [("a.tar", SPLIT), ("b.tar", plain())]:
            sink = open_write(f"s3://shards/{name}", storage, WriteOptions())
            sink.write(content)
            sink.commit()
        urls = ["s3://shards/a.tar", "s3://shards/b.tar"]
        gathered = gather(Inputs(urls), str(tmp_path), Select(), Access(storage))
        assert [sample["__key__"] for sample in gathered.dataset()] == ["a", "b", "s0", "s1", "s2"]
        assert list(gathered.origins.values()) == ["s3://shards/a.tar"]


@pytest.mark.parametrize("kind", ["whole.tar", "split.tar", "packed.tar.gz"])
def test_other_bytes_of_the_same_size_are_noticed(tmp_path, kind):
    def write(value, time):
        apart = [("a.txt", value), ("b.txt", b"2"), ("a.cls", b"3")]
        data = plain(apart if kind == "split.tar" else [("b.txt", b"2"), ("a.txt", value)])
        path = tmp_path / kind
        path.write_bytes(gzip.compress(data, 0, mtime=0) if kind.endswith("gz") else data)
        os.utime(path, (time, time))
        return path.stat().st_size

    size = write(b"1", 1_000)
    output = str(tmp_path / "o-{i}.tar")
    assert sort([str(tmp_path / kind)], output).written == 2
    assert sort([str(tmp_path / kind)], output).kept == 1
    assert write(b"9", 2_000) == size
    with pytest.raises(JobMismatch, match="inputs"):
        sort([str(tmp_path / kind)], output)
    assert content(str(tmp_path / "o-*.tar"))[0]["txt"] == b"1"
    sort(str(tmp_path / kind), output, overwrite=True)
    assert content(str(tmp_path / "o-*.tar"))[0]["txt"] == b"9"


def test_what_a_full_disk_is_called(tmp_path):
    for number, kind in [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, WriteError)]:
        with pytest.raises(kind, match="/x") as caught, disk_errors("/x"):
            raise OSError(number, os.strerror(number))
        assert type(caught.value) is kind
    with pytest.raises(NotFound), disk_errors("/x"):
        raise NotFound("ours stay as they are.")
    with pytest.raises(WriteError):
        unpack(_file(tmp_path), "/proc/nowhere/x", IndexOptions())


def _file(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    return str(tmp_path / "x")


@pytest.mark.parametrize("count", [0, 1, 1 << 16, (1 << 16) + 1])
def test_integers_in_a_file(tmp_path, count):
    path = str(tmp_path / "x.npy")
    write_integers(path, iter(range(count)))
    numbers = np.load(path, mmap_mode="r") if count else np.load(path)
    assert numbers.dtype == np.int64
    assert np.array_equal(numbers, np.arange(count))
    assert os.listdir(tmp_path) == ["x.npy"]
