"""The writers take the arguments of the webdataset library and have its attributes."""

from __future__ import annotations

import io
import logging
import os
import tarfile
import threading

import pytest
import webdataset as real

import tarmac
import tarmac.webdataset as wds


def fill(writer, count):
    for i in range(count):
        writer.write({"__key__": f"{i:04d}", "txt": "x" * 10})


def test_opener_gets_names_and_compression_and_is_closed():
    opened = {}

    class Kept(io.BytesIO):
        def close(self):
            self.content = self.getvalue()
            super().close()

    def opener(name):
        opened[name] = Kept()
        return opened[name]

    with wds.ShardWriter("a-%d.tar.gz", maxcount=2, opener=opener) as shards:
        fill(shards, 3)
    assert sorted(opened) == ["a-0.tar.gz", "a-1.tar.gz"]
    assert all(file.closed and file.content.startswith(b"\x1f\x8b") for file in opened.values())


def test_verbose_logs(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "tarmac"):
        with wds.ShardWriter(str(tmp_path / "a-%d.tar"), verbose=1) as shards:
            fill(shards, 2)
        with wds.ShardWriter(str(tmp_path / "b-%d.tar"), verbose=0) as shards:
            fill(shards, 2)
    assert len(caplog.messages) == 1
    assert "2 samples" in caplog.messages[0]


def test_attributes_and_positional_arguments(tmp_path):
    seen = []
    with wds.ShardWriter(str(tmp_path / "a-%d.tar"), 2, 1e6, seen.append, 3, 0) as shards:
        fill(shards, 3)
        assert (shards.total, shards.count, shards.size, shards.shard) == (3, 1, 10, 5)
        assert (shards.maxcount, shards.maxsize) == (2, 1e6)
        assert shards.fname == str(tmp_path / "a-4.tar")
        assert shards.tarstream is not None
        shards.next_stream()
        shards.finish()
    assert [name[-7:] for name in seen] == ["a-3.tar", "a-4.tar", "a-5.tar"]


@pytest.mark.parametrize("format", [None, "gnu", tarfile.GNU_FORMAT, "GNU_FORMAT"])
def test_tar_formats(format):
    stream = io.BytesIO()
    with wds.TarWriter(stream, "me", "us", 0o600, encoder=None, mtime=5.9, format=format) as shard:
        shard.write({"__key__": "a", "txt": b"x"})
    assert stream.getvalue()[257:265] == (b"ustar\x0000" if format is None else b"ustar  \0")
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        (info,) = archive
    assert (info.uname, info.gname, info.mode, info.mtime) == ("me", "us", 0o600, 5)
    with pytest.raises(tarmac.errors.UsageError, match="format"):
        wds.TarWriter(stream, format="zip")


def test_no_index_with_an_opener():
    with pytest.raises(ValueError, match="opener"):
        wds.ShardWriter("a-%d.tar", index=True, opener=lambda name: io.BytesIO())


# -- compared with the library -------------------------------------------------------------------------------------

libraries = pytest.mark.parametrize("library", [real, wds], ids=["webdataset", "tarmac"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@libraries
def test_the_first_shard_is_opened_at_once(tmp_path, library):
    seen = []
    with library.ShardWriter(str(tmp_path / "a-%d.tar"), post=seen.append, start_shard=3) as shards:
        assert shards.fname == str(tmp_path / "a-3.tar")
        assert (shards.shard, shards.count, shards.total) == (4, 0, 0)
        assert isinstance(shards.tarstream, library.TarWriter)
    assert seen == [str(tmp_path / "a-3.tar")]
    with tarfile.open(seen[0]) as archive:
        assert archive.getnames() == []
    dataset = library.WebDataset(seen[0], shardshuffle=False, empty_check=False)
    assert list(dataset) == []


@libraries
def test_a_missing_directory_is_a_missing_file(tmp_path, library):
    for make in (library.TarWriter, library.ShardWriter):
        with pytest.raises(FileNotFoundError):
            make(str(tmp_path / "missing" / "x-%d.tar"))


@libraries
def test_devices_are_written(library):
    with library.TarWriter(os.devnull) as shard:
        shard.write({"__key__": "a", "txt": "x"})


@libraries
def test_named_pipes_are_written(tmp_path, library):
    pipe, names = str(tmp_path / "pipe"), []

    def read():
        with open(pipe, "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            names.extend(info.name for info in archive)

    os.mkfifo(pipe)
    reader = threading.Thread(target=read)
    reader.start()
    with library.TarWriter(pipe) as shard:
        shard.write({"__key__": "a", "txt": "x"})
    reader.join()
    assert names == ["a.txt"]


@libraries
def test_attributes(tmp_path, library):
    stream = io.BytesIO()
    with library.TarWriter(stream, "me", "us", 0o600, "gz", mtime=5.0, keep_meta=True) as shard:
        assert (shard.user, shard.group, shard.mode, shard.compress) == ("me", "us", 0o600, "gz")
        assert (shard.mtime, shard.keep_meta, shard.stream, shard.own_fileobj) == (5.0, True, stream, None)
        assert shard.encoder({"__key__": "a", "txt": "x"}) == {"__key__": "a", "txt": b"x"}
    with library.TarWriter(str(tmp_path / "x.tar")) as shard:
        assert shard.own_fileobj is shard.stream
        assert callable(shard.stream.write)
    assert shard.own_fileobj is None
    for name, compress in [("x", None), ("x.gz", None), ("x.xz", False), (stream, True), (stream, "bz2")]:
        assert library.TarWriter.tarmode(name, compress) == real.TarWriter.tarmode(name, compress)
