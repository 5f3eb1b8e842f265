"""The writers take the arguments of the webdataset library and have its attributes."""

from __future__ import annotations

import io
import logging
import tarfile

import pytest

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
