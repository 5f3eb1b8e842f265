"""Open URLs as files: files are written completely or not at all; custom schemes."""

from __future__ import annotations

import gc
import io
import sys

import pytest

import tarmac
from harness.shards import plain
from harness.waiting import FOREVER
from tarmac.compat.webdataset.gopen import (
    Pipe,
    WriteFile,
    gopen,
    gopen_error,
    gopen_schemes,
    pipe_cleaner,
    reader,
    set_options,
)
from tarmac.errors import CommandFailed, NotFound, UnclosedWriter, UnsafeUrl, UnsupportedScheme
from tarmac.storage import enforce_security
from tarmac.storage.schemes import scheme_of


@pytest.mark.processes
def test_reading(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    with gopen(str(path)) as file:
        assert file.readline() == b"one\n"
        assert file.read() == b"two\n"
    assert file.closed
    assert list(reader(f"file:{path}", bufsize=1)) == [b"one\n", b"two\n"]
    with gopen(f"pipe:cat {path}", "rb", 4096) as file:
        assert file.read(5) == b"one\nt"
    with pytest.raises(NotFound):
        gopen(str(tmp_path / "none"))


@pytest.mark.processes
def test_a_failed_command_is_not_a_short_file():
    with gopen("pipe:echo x; exit 7") as file, pytest.raises(CommandFailed, match="status 7"):
        file.read()


def test_a_written_file_appears_when_closed(tmp_path):
    path = tmp_path / "a.bin"
    with gopen(str(path), "wb") as file:
        file.write(b"x" * 100_000)
        assert not path.exists()
    assert path.read_bytes() == b"x" * 100_000
    file = gopen(str(path), "wb")
    file.write(b"y")
    file.close()
    file.close()
    assert path.read_bytes() == b"y"


def test_a_failed_block_publishes_nothing(tmp_path):
    path = tmp_path / "a.bin"
    with pytest.raises(ZeroDivisionError), gopen(str(path), "wb") as file:
        file.write(b"x")
        _ = 1 / 0
    file = gopen(str(path), "wb")
    file.write(b"x")
    file.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_never_closed_is_published_with_a_warning(tmp_path):
    with pytest.warns(UnclosedWriter, match=r"a\.bin: "):
        gopen(str(tmp_path / "a.bin"), "wb").write(b"x")
        gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == b"x"


@pytest.mark.processes
def test_close_raises_if_the_command_failed():
    with pytest.raises(CommandFailed), gopen("pipe:cat > /dev/null; exit 1", "wb") as file:
        file.write(b"x" * 100_000)


class Full:
    """A sink that accepts one write."""

    def __init__(self):
        self.calls = []

    def write(self, data, /):
        self.calls.append("write")
        if len(self.calls) > 1:
            raise OSError("full")

    def commit(self):
        self.calls.append("commit")

    def abort(self):
        self.calls.append("abort")


@pytest.mark.parametrize("bufsize", [1, 1000])
def test_a_failed_write_is_not_published_by_close(bufsize):
    sink = Full()
    file = WriteFile(sink, bufsize)
    with pytest.raises(OSError, match="full"):
        for _ in range(5):
            file.write(b"x" * 600)
        file.flush()
    file.close()
    assert sink.calls == ["write", "write", "abort"]


def test_standard_streams(monkeypatch, tmp_path):
    with open(tmp_path / "in", "w+b") as file:
        file.write(b"text")
        file.seek(0)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
        with gopen("-") as stream:
            assert stream.read() == b"text"
        assert not sys.stdin.closed
        sys.stdin.detach()


@pytest.mark.processes
def test_arguments(tmp_path):
    with pytest.raises(ValueError, match="mode"):
        gopen(str(tmp_path / "a"), "r")
    with pytest.raises(TypeError, match="speed"):
        gopen(str(tmp_path / "a"), speed=9)
    with gopen(f"pipe:sleep {FOREVER}", command_timeout=0.01) as file, pytest.raises(tarmac.errors.Stalled):
        file.read()


class Store:
    """An in-memory store, as users write them for webdataset."""

    def __init__(self, **files):
        self.files = files
        self.calls = []

    def __call__(self, url, mode, bufsize=8192, **kw):
        self.calls.append((mode, bufsize, kw))
        name = url.rpartition("/")[2]
        if mode == "rb":
            return io.BytesIO(self.files[name])
        store = self

        class Target(io.BytesIO):
            def close(self):
                if not self.closed:
                    store.files[name] = self.getvalue()
                super().close()

        return Target()


def test_custom_schemes_work_everywhere():
    store = Store(a=plain([("x.txt", b"1"), ("y.txt", b"2")]))
    assert "mem" not in gopen_schemes
    gopen_schemes["mem"] = store
    try:
        assert gopen_schemes["mem"] is store
        assert [sample["__key__"] for sample in tarmac.WebDataset("mem://h/a", shardshuffle=False)] == [
            "x",
            "y",
        ]
        with gopen("mem://h/a", bufsize=100) as file:
            assert len(file.read()) == len(store.files["a"])
        with gopen("mem://h/a", "rb", 100, token="t") as file:
            assert store.calls[-1] == ("rb", 100, {"token": "t"})
        with tarmac.TarWriter("mem://h/b") as shard:
            shard.write({"__key__": "k", "txt": b"3"})
        assert [sample["txt"] for sample in tarmac.read("mem://h/b")] == [b"3"]
    finally:
        del gopen_schemes["mem"]
    with pytest.raises(UnsupportedScheme):
        gopen("mem://h/a")
    with pytest.raises(KeyError):
        del gopen_schemes["mem"]


def test_built_in_schemes_are_restored():
    assert {"pipe", "http", "https", "gs", "s3", "hf", "ais", "__default__"} <= set(gopen_schemes)
    assert len(gopen_schemes) == len(list(gopen_schemes))
    built_in = gopen_schemes["s3"]
    gopen_schemes["s3"] = Store(a=b"1")
    gopen_schemes["s3"] = Store(a=b"2")
    assert gopen("s3://b/a").read() == b"2"
    del gopen_schemes["s3"]
    assert gopen_schemes["s3"] is built_in
    with pytest.raises(ValueError, match="scheme"):
        gopen_schemes["__default__"] = Store()
    with pytest.raises(UnsupportedScheme):
        gopen_schemes["__default__"]("xyz://a")
    with pytest.raises(UnsupportedScheme):
        gopen_error("xyz://a", "rb")
    assert scheme_of("s3://b/a") == "s3"


def test_the_url_inside_a_command():
    assert pipe_cleaner("pipe:curl -s https://h/a.tar || true") == "https://h/a.tar"
    assert pipe_cleaner("pipe:cat a.tar") == "cat a.tar"
    assert pipe_cleaner("s3://b/a.tar") == "s3://b/a.tar"


@pytest.mark.processes
def test_pipes_for_custom_handlers(tmp_path):
    with Pipe(["echo", "text"], mode="rb") as pipe:
        assert pipe.readline() == b"text\n"
        assert pipe.readline() == b""
    assert pipe.closed
    with Pipe("exit 3", mode="rb", shell=True) as pipe, pytest.raises(CommandFailed, match="status 3"):
        pipe.read()
    with Pipe("echo x; exit 3", mode="rb", shell=True, ignore_status=[3]) as pipe:
        assert pipe.read() == b"x\n"
    with Pipe(["yes"], mode="rb") as pipe:
        assert pipe.read(4) == b"y\ny\n"
    with Pipe(f"cat > {tmp_path}/out", mode="wb", shell=True) as pipe:
        pipe.write(b"text")
        pipe.flush()
    assert (tmp_path / "out").read_bytes() == b"text"
    with pytest.raises(CommandFailed), Pipe("cat >/dev/null; exit 1", mode="wb", shell=True) as pipe:
        pipe.write(b"text")
    with pytest.raises(ZeroDivisionError), Pipe(["cat"], mode="wb", stdout=-3) as pipe:
        _ = 1 / 0
    assert pipe.status is not None
    with pytest.raises(ValueError, match="mode"):
        Pipe(["true"], mode="x")
    with Pipe(["true"], mode="rb") as pipe:
        assert set_options(pipe, timeout=1, ignore_errors=True)
        assert (pipe.timeout, pipe.ignore_errors) == (1, True)
    assert not set_options(io.BytesIO(), timeout=1)


@pytest.mark.processes
def test_pipes_that_stall_are_errors():
    with Pipe(["sleep", f"{FOREVER}"], mode="rb") as pipe:
        set_options(pipe, timeout=0.01)
        with pytest.raises(tarmac.errors.Stalled):
            pipe.read()
    assert pipe.status < 0


def test_secure_mode_rejects_commands():
    enforce_security()
    try:
        with pytest.raises(UnsafeUrl):
            gopen("pipe:true")
        with pytest.raises(UnsafeUrl):
            Pipe(["true"], mode="rb")
    finally:
        enforce_security(False)
