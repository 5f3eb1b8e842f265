"""From a URL to its leaf, and schemes of one's own."""

from __future__ import annotations

import io

import pytest

import tarmac
from tarmac.errors import ShortRead, UnsupportedScheme, WriteError
from tarmac.storage import (
    is_local,
    open_read,
    open_write,
    read_range,
    register_scheme,
    scheme_of,
    schemes,
    stat,
)
from tarmac.storage.schemes import FileSink


@pytest.fixture(autouse=True)
def own_schemes(monkeypatch):
    monkeypatch.setattr(schemes, "_registered", {})


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("a.tar", ""),
        ("/a/b:c.tar", ""),
        ("C:\\x.tar", ""),
        ("a#b?c", ""),
        ("mem:x", ""),
        ("-", "-"),
        ("--", ""),
        ("file:a", "file"),
        ("file:///a", "file"),
        ("FILE:///a", "file"),
        ("pipe:cat", "pipe"),
        ("http://h/x", "http"),
        ("HTTPS://h/x", "https"),
        ("s3://b/x", "s3"),
        ("a+b.c-d://x", "a+b.c-d"),
        ("http:/x", ""),
        (" s3://b", ""),
    ],
)
def test_scheme_of(url, scheme):
    assert scheme_of(url) == scheme
    assert is_local(url) == (scheme in ("", "file"))


def test_an_unknown_scheme():
    for operation in (open_read, open_write, stat, lambda url: read_range(url, 0, 1)):
        with pytest.raises(UnsupportedScheme, match=r'"ftp:".*known are.*s3.*register_scheme'):
            operation("ftp://host/x.tar")


def test_a_scheme_of_ones_own():
    kept: dict[str, bytes] = {}

    class Kept(io.BytesIO):
        def __init__(self, url):
            super().__init__()
            self.url = url

        def close(self):
            kept[self.url] = self.getvalue()
            super().close()

    register_scheme("mem", lambda url: io.BytesIO(kept[url]), Kept)
    with tarmac.TarWriter("mem:x.tar") as shard:
        shard.write({"__key__": "a", "txt": "b"})
    for url in ("mem:x.tar",):
        assert scheme_of(url) == "mem"
        assert len(list(tarmac.read(url))) == 1
        assert stat(url).size == len(kept[url])
        assert read_range(url, 5, 10) == kept[url][5:10]
    with pytest.raises(ShortRead):
        read_range("mem:x.tar", 0, 1 << 20)
    register_scheme("mem", lambda url: io.BytesIO(b"other"))
    with pytest.raises(UnsupportedScheme, match="reading only"):
        open_write("mem:x")
    with open_read("mem://y") as source:
        assert source.read(100) == b"other"


@pytest.mark.parametrize("name", ["", "a", "1x", "a b", "a:", "é"])
def test_names_that_are_no_scheme(name):
    with pytest.raises(ValueError, match="scheme"):
        register_scheme(name, io.BytesIO)


def test_a_built_in_scheme_can_be_replaced():
    register_scheme("s3", lambda _: io.BytesIO(b"mine"))
    with open_read("s3://b/x") as source:
        assert source.read(10) == b"mine"


def test_a_file_object_that_takes_little_at_a_time():
    class Slow(io.RawIOBase):
        def __init__(self):
            self.data = b""
            self.most = 7

        def writable(self):
            return True

        def write(self, data):
            if self.most is None:
                return None
            self.data += bytes(data[: self.most])
            return min(self.most, len(data))

    slow = Slow()
    sink = FileSink(slow, close=False)
    sink.write(b"0123456789" * 10)
    assert slow.data == b"0123456789" * 10
    slow.most = 0
    with pytest.raises(WriteError, match="no more"):
        sink.write(b"x")
    slow.most = None
    with pytest.raises(WriteError, match="block"):
        sink.write(b"x")
    sink.commit()
    assert not slow.closed


def test_a_file_object_that_fails_to_flush_is_closed():
    class Full(io.BytesIO):
        def flush(self):
            raise OSError(28, "No space left")

    full = Full()
    with pytest.raises(OSError, match="No space"):
        FileSink(full, close=True).commit()
    assert full.closed
