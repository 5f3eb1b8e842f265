"""Fields are read from the planned files, or an error names the file."""

from __future__ import annotations

import os

import pytest

from harness.waiting import FOREVER, TIMEOUT, FakeClock
from tarmac.errors import AccessDenied, CommandFailed, NotFound, ObjectChanged, Stalled, TransferError
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.pack.sources import files
from tarmac.tools.pack.sources.files import file_loader, file_stat, locate_file, read_object
from tarmac.tools.pack.sources.source import UNKNOWN


def load(*files, stats=None):
    with file_loader(DEFAULT_STORAGE, {} if stats is None else stats) as load_files:
        return load_files("k", files)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 4096, 1 << 20])
@pytest.mark.parametrize("sized", [False, True])
def test_a_file(tmp_path, size, sized):
    (tmp_path / "a.bin").write_bytes(os.urandom(size))
    file = locate_file("bin", str(tmp_path / "a.bin"), DEFAULT_STORAGE, sized)
    assert file[2:] == (file_stat(file[1]) if sized else (-1, UNKNOWN))
    assert load(file) == {"__key__": "k", "bin": (tmp_path / "a.bin").read_bytes()}


def test_several_fields_and_literals():
    sample = load(("txt", b"hello", 5, None), ("cls", b"3", 1, None))
    assert sample == {"__key__": "k", "txt": b"hello", "cls": b"3"}


@pytest.mark.parametrize("now", [b"longer than before", b"short", b"", b"same_size!"])
def test_a_file_that_changes(tmp_path, now):
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(5, 5))
    file = locate_file("txt", str(path), DEFAULT_STORAGE, needs_size=True)
    path.write_bytes(now)
    with pytest.raises(ObjectChanged, match=r"a\.txt"):
        load(file)


@pytest.mark.parametrize("sized", [False, True])
def test_a_file_that_does_not_exist(tmp_path, sized):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x")
    file = locate_file("txt", str(path), DEFAULT_STORAGE, sized)
    path.unlink()
    with pytest.raises(NotFound, match=r"a\.txt"):
        load(file)
    with pytest.raises(NotFound, match=r"b\.txt"):
        load(locate_file("txt", str(tmp_path / "b.txt"), DEFAULT_STORAGE, sized))
    with pytest.raises(TransferError, match="directory"):
        load(locate_file("txt", str(tmp_path), DEFAULT_STORAGE, sized))


@pytest.mark.parametrize("sized", [False, True])
def test_special_files_are_errors(tmp_path, sized):
    os.mkfifo(tmp_path / "a.txt")  # without a writer: opening it must not block
    for path in (str(tmp_path / "a.txt"), "/dev/null"):
        with pytest.raises(TransferError, match=path):
            load(locate_file("txt", path, DEFAULT_STORAGE, sized))


def test_the_recorded_stat_is_that_before_reading(tmp_path, monkeypatch):
    path, stats = tmp_path / "a.txt", {}
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(5, 5))
    file = locate_file("txt", str(path), DEFAULT_STORAGE)
    original_read = os.read

    def read(fd, size):
        os.utime(path, ns=(7, 7))
        return original_read(fd, size)

    monkeypatch.setattr(os, "read", read)
    assert load(file, stats=stats)["txt"] == b"0123456789"
    assert stats[str(path)][:2] == (10, 5) != file_stat(str(path))


def test_a_file_that_grows_while_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789")
    file = locate_file("txt", str(path), DEFAULT_STORAGE)
    original_read = os.read

    def read(fd, size):
        with open(path, "ab") as more:
            more.write(b"more")
        return original_read(fd, size)

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(ObjectChanged, match=r"a\.txt"):
        load(file)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x")
    file = locate_file("txt", str(path), DEFAULT_STORAGE)

    def deny(*_):
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(AccessDenied, match=r"a\.txt"):
        load(file)


def test_a_large_file_comes_in_several_reads(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(256)) * 16)
    file = locate_file("bin", str(path), DEFAULT_STORAGE)
    original_read = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: original_read(fd, min(size, 1000)))
    assert load(file)["bin"] == path.read_bytes()


@pytest.mark.processes
def test_commands(monkeypatch):
    storage = StorageOptions(command_timeout=TIMEOUT)
    assert read_object("pipe:printf abc", -1, None, storage) == b"abc"
    with pytest.raises(CommandFailed, match="status 3"):
        read_object("pipe:echo abc; exit 3", -1, None, storage)
    with pytest.raises(Stalled):
        read_object(f"pipe:sleep {FOREVER}", -1, None, StorageOptions(command_timeout=0.2))
    clock = FakeClock(tick=1)  # a second for each piece
    monkeypatch.setattr(files, "time", clock)
    with pytest.raises(Stalled, match="120 seconds"):
        read_object("pipe:while echo; do true; done", -1, None, storage)
    assert clock.now == 1122
