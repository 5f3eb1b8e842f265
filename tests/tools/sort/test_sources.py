"""Any shards as an indexed dataset."""

from __future__ import annotations

import errno
import gzip
import os

import pytest

from harness.servers import required, seaweed_s3
from harness.shards import plain
from tarmac.errors import DiskFull, JobMismatch, NotFound, WriteError
from tarmac.storage import StorageOptions, WriteOptions, open_write
from tarmac.tools.output import Output
from tarmac.tools.select import Select
from tarmac.tools.sort.sort import sort
from tarmac.tools.sort.sources import disk_errors, gather, unpack, workplace
from tools.shards import RUN, content

SPLIT = plain([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")])


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path_factory.mktemp("home")))


def test_every_kind(tmp_path):
    (tmp_path / "plain.tar").write_bytes(plain())
    (tmp_path / "packed.tar.gz").write_bytes(gzip.compress(SPLIT))
    (tmp_path / "split.tar").write_bytes(SPLIT)
    urls = [str(tmp_path / name) for name in ("plain.tar", "packed.tar.gz", "split.tar")]
    with workplace("sort", str(tmp_path)) as home:
        found = gather(urls, home, Select(), show=False)
        shards = found.manifest.shards
        assert [shard.samples for shard in shards] == [3, 2, 2]
        assert shards[0].url == urls[0]
        assert os.path.basename(shards[1].url) == "packed.tar"  # the name that its output gets
        assert found.origins == {shards[1].url: urls[1]}
        assert shards[2].url == urls[2]
        assert [sample["__key__"] for sample in found.dataset()] == ["s0", "s1", "s2", "a", "b", "a", "b"]
        with pytest.raises(NotFound):
            gather([str(tmp_path / "absent.tar")], home, Select(), show=False)
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
        found = gather(urls, str(tmp_path), Select(storage=storage), show=False)
        assert [sample["__key__"] for sample in found.dataset()] == ["a", "b", "s0", "s1", "s2"]
        assert list(found.origins.values()) == ["s3://shards/a.tar"]


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
    output = Output(str(tmp_path / "o-{i}.tar"))
    assert sort([str(tmp_path / kind)], output, RUN).written == 2
    assert sort([str(tmp_path / kind)], output, RUN).kept == 1
    assert write(b"9", 2_000) == size
    with pytest.raises(JobMismatch, match=r"inputs|made from"):
        sort([str(tmp_path / kind)], output, RUN)
    assert content(str(tmp_path / "o-*.tar"))[0]["txt"] == b"1"
    sort([str(tmp_path / kind)], Output(output.pattern, overwrite=True), RUN)
    assert content(str(tmp_path / "o-*.tar"))[0]["txt"] == b"9"


def test_what_a_full_disk_is_called(tmp_path):
    for number, kind in [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, WriteError)]:
        with pytest.raises(kind, match="working file") as caught, disk_errors("/x"):
            raise OSError(number, os.strerror(number))
        assert type(caught.value) is kind
    with pytest.raises(NotFound), disk_errors("/x"):
        raise NotFound("ours stay as they are.")
    with pytest.raises(WriteError):
        unpack(_file(tmp_path), "/proc/nowhere/x", StorageOptions())


def _file(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    return str(tmp_path / "x")
