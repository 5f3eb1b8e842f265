"""Bytes of fields: read whole, as planned, or an error that names the file."""

from __future__ import annotations

import os

import pytest

from harness.waiting import FOREVER, PATIENCE, FakeClock
from tarmac.errors import AccessDenied, CommandFailed, NotFound, ObjectChanged, Stalled, TransferError
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.pack.sources import files
from tarmac.tools.pack.sources.files import file_at, loading, look_at, read_file
from tarmac.tools.pack.sources.source import UNSEEN


def load(*files, seen=None):
    with loading(DEFAULT_STORAGE, {} if seen is None else seen) as reading:
        return reading("k", files)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 4096, 1 << 20])
@pytest.mark.parametrize("sized", [False, True])
def test_a_file(tmp_path, size, sized):
    (tmp_path / "a.bin").write_bytes(os.urandom(size))
    file = file_at("bin", str(tmp_path / "a.bin"), DEFAULT_STORAGE, sized)
    assert file[2:] == (look_at(file[1]) if sized else (-1, UNSEEN))
    assert load(file) == {"__key__": "k", "bin": (tmp_path / "a.bin").read_bytes()}
    assert read_file(file, DEFAULT_STORAGE) == (tmp_path / "a.bin").read_bytes()


def test_several_fields_and_literals():
    found = load(("txt", b"hello", 5, None), ("cls", b"3", 1, None))
    assert found == {"__key__": "k", "txt": b"hello", "cls": b"3"}


@pytest.mark.parametrize("now", [b"longer than before", b"short", b"", b"same_size!"])
def test_a_file_that_changes(tmp_path, now):
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(5, 5))
    file = file_at("txt", str(path), DEFAULT_STORAGE, sized=True)
    path.write_bytes(now)
    with pytest.raises(ObjectChanged, match=r"a\.txt: this file has changed"):
        load(file)


@pytest.mark.parametrize("sized", [False, True])
def test_a_file_that_vanishes_or_never_was(tmp_path, sized):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x")
    file = file_at("txt", str(path), DEFAULT_STORAGE, sized)
    path.unlink()
    with pytest.raises(NotFound, match=r"a\.txt"):
        load(file)
    with pytest.raises(NotFound, match=r"b\.txt"):
        load(file_at("txt", str(tmp_path / "b.txt"), DEFAULT_STORAGE, sized))
    with pytest.raises(TransferError, match="directory"):
        load(file_at("txt", str(tmp_path), DEFAULT_STORAGE, sized))


@pytest.mark.parametrize("sized", [False, True])
def test_what_is_not_a_plain_file(tmp_path, sized):
    os.mkfifo(tmp_path / "a.txt")  # nobody writes to it, and nobody waits for that
    for path in (str(tmp_path / "a.txt"), "/dev/null"):
        with pytest.raises(TransferError, match="not a plain file"):
            load(file_at("txt", path, DEFAULT_STORAGE, sized))


def test_what_is_seen_is_what_was_there_before_it_was_read(tmp_path, monkeypatch):
    path, seen = tmp_path / "a.txt", {}
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(5, 5))
    file = file_at("txt", str(path), DEFAULT_STORAGE)
    whole = os.read

    def read(fd, size):
        os.utime(path, ns=(7, 7))
        return whole(fd, size)

    monkeypatch.setattr(os, "read", read)
    assert load(file, seen=seen)["txt"] == b"0123456789"
    assert seen == {str(path): (10, 5)} != {str(path): look_at(str(path))}


def test_a_file_that_grows_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789")
    file = file_at("txt", str(path), DEFAULT_STORAGE)
    whole = os.read

    def read(fd, size):
        with open(path, "ab") as more:
            more.write(b"more")
        return whole(fd, size)

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(ObjectChanged, match=r"a\.txt: this file has changed"):
        load(file)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x")
    file = file_at("txt", str(path), DEFAULT_STORAGE)

    def refuse(*_):
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(AccessDenied, match=r"a\.txt"):
        load(file)


def test_a_large_file_comes_in_several_reads(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(256)) * 16)
    file = file_at("bin", str(path), DEFAULT_STORAGE)
    whole = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: whole(fd, min(size, 1000)))
    assert load(file)["bin"] == path.read_bytes()


def test_commands(monkeypatch):
    storage = StorageOptions(command_idle=PATIENCE)
    assert read_file(("txt", "pipe:printf abc", -1, None), storage) == b"abc"
    with pytest.raises(CommandFailed, match="status 3"):
        read_file(("txt", "pipe:echo abc; exit 3", -1, None), storage)
    with pytest.raises(Stalled):
        read_file(("txt", f"pipe:sleep {FOREVER}", -1, None), StorageOptions(command_idle=0.2))
    clock = FakeClock(tick=1)  # a second for each piece
    monkeypatch.setattr(files, "time", clock)
    with pytest.raises(Stalled, match="took more than 120 seconds"):
        read_file(("txt", "pipe:while echo; do true; done", -1, None), storage)
    assert clock.now == 1122
