"""Local files: a name on disk is a complete file, whatever fails and whenever the writer dies."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import threading
from pathlib import Path

import pytest

import tarmac
from harness import rounds
from harness.crash import Crash, Forked, crash, survive
from harness.faultfs import ERRORS, SHORT, Fault, descriptors, every_fault, faulty
from tarmac.errors import AccessDenied, CommitFailed, DiskFull, NotFound, TransferError, WriteError
from tarmac.storage import WriteOptions, open_read, read_range, stat
from tarmac.storage.local import BUFFER, LocalSink, LocalSource, local_path

PIECE = BUFFER // 10
DATA = bytes(range(256)) * (BUFFER * 9 // 1024)  # more than two buffers


def put(path: Path, data: bytes = DATA, options: WriteOptions = WriteOptions()) -> None:
    sink = LocalSink(str(path), options)
    try:
        for start in range(0, len(data), PIECE):
            sink.write(data[start : start + PIECE])
    except BaseException:
        sink.abort()
        raise
    sink.commit()


# ---- reading


def test_reads_to_the_end_and_maps(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(DATA)
    with open_read(str(path)) as source:
        assert source.length == len(DATA)
        assert b"".join(iter(lambda: source.read(1000), b"")) == DATA
    with open_read(str(path)) as source:
        mapped = source.map()
        assert mapped is not None
        assert mapped[:] == DATA
    source.close()  # closing twice is allowed


def test_unmappable_files_are_read(tmp_path):
    (tmp_path / "empty").touch()
    with open_read(str(tmp_path / "empty")) as source:
        assert source.map() is None
        assert source.read(1) == b""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(b"through a pipe",))
    writer.start()
    with open_read(str(fifo)) as source:
        assert source.map() is None
        assert source.length is None
        assert b"".join(iter(lambda: source.read(4), b"")) == b"through a pipe"
    writer.join()


def test_ranges_and_stat(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(DATA)
    assert read_range(str(path), 1000, 5000) == DATA[1000:5000]
    assert read_range(str(path), 7, 7) == b""
    assert stat(str(path)).size == len(DATA)
    before = stat(str(path)).version
    os.utime(path, ns=(1, 1))
    assert stat(str(path)).version != before


def test_reading_errors_are_typed(tmp_path):
    with pytest.raises(NotFound, match="/none"):
        open_read(str(tmp_path / "none"))
    with pytest.raises(NotFound, match="directory"):
        open_read(str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(NotFound):
        open_read(str(tmp_path / "file" / "below"))
    with pytest.raises(NotFound, match="NUL"):
        open_read("a\0b")
    with pytest.raises(NotFound):
        stat(str(tmp_path / "none"))
    with pytest.raises(TransferError):
        open_read("x" * 5000)
    with faulty(Fault(1, errno.EACCES, ("open",)), tmp_path), pytest.raises(AccessDenied):
        open_read(str(tmp_path / "file"))
    with LocalSource(str(tmp_path / "file")) as source:
        with pytest.MonkeyPatch.context() as patch:
            broken = lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error"))  # noqa: E731
            patch.setattr(os, "read", broken)
            patch.setattr(os, "pread", broken)
            with pytest.raises(TransferError, match="I/O error"):
                source.read(10)
            with pytest.raises(TransferError, match="I/O error"):
                source.read_at(0, 10)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("a#1?%20.tar", "a#1?%20.tar"),
        ("file:a#1?%20.tar", "a#1?%20.tar"),
        ("file:///d/a%20b.tar", "/d/a b.tar"),
        ("file:///d/a#1?x.tar", "/d/a#1?x.tar"),
        ("file://localhost/d/x.tar", "/d/x.tar"),
    ],
)
def test_only_file_urls_are_decoded(url, path):
    assert local_path(url) == path


# ---- every call fails once


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: errno.errorcode.get(kind, kind))
@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("durable", [True, False])
def test_every_call_fails_once(tmp_path, kind, old, durable):
    path, options = tmp_path / "x.tar", WriteOptions(durable=durable)
    fired = []
    for fault in every_fault(kind):
        path.unlink(missing_ok=True)
        if old:
            path.write_bytes(old)
        before = descriptors()
        failed = None
        with faulty(fault, tmp_path):
            try:
                put(path, options=options)
            except WriteError as error:
                failed = error
        assert not descriptors() - before, fault
        assert [name for name in os.listdir(tmp_path) if name != "x.tar"] == [], fault
        fired.append(fault.fired)
        if failed is None:
            assert path.read_bytes() == DATA
            continue
        assert isinstance(failed, DiskFull if kind in (errno.ENOSPC, errno.EDQUOT) else CommitFailed)
        assert str(path) in str(failed)
        now = path.read_bytes() if path.exists() else None
        # After the rename, a failed sync of the directory leaves the complete new file.
        assert now in ((old, DATA) if fault.fired == "fsync" and old else (old,)), fault
        put(path, options=options)
        assert path.read_bytes() == DATA
    assert fired[-1] == ""
    assert fired.count("write") == 3
    if kind != SHORT:
        wanted = {"open", "write", "close", "replace" if old else "link"} | ({"fsync"} if durable else set())
        assert set(fired) - {""} == wanted


def test_every_call_fails_once_under_a_shard_writer(tmp_path):
    pattern = str(tmp_path / "x-%02d.tar")
    for kind in (errno.ENOSPC, errno.EIO, SHORT):
        for fault in every_fault(kind):
            for path in tmp_path.iterdir():
                path.unlink()
            before = descriptors()
            failed = False
            try:
                with faulty(fault, tmp_path), tarmac.ShardWriter(pattern, max_samples=3) as shards:
                    for number in range(9):
                        shards.write({"__key__": f"{number:03d}", "txt": "x" * 400_000})
            except WriteError:
                failed = True
            assert not descriptors() - before
            names = sorted(os.listdir(tmp_path))
            assert failed == (len(names) < 3), (fault, names)
            for name in names:
                assert len(list(tarmac.read(str(tmp_path / name)))) == 3


def test_a_write_of_zero_bytes_is_an_error(tmp_path, monkeypatch):
    sink = LocalSink(str(tmp_path / "x"))
    monkeypatch.setattr(os, "write", lambda *_: 0)
    with pytest.raises(CommitFailed, match="/x"):
        sink.write(bytes(BUFFER))
    assert os.listdir(tmp_path) == []


def test_a_modified_part_file_is_not_published(tmp_path):
    sink = LocalSink(str(tmp_path / "x"))
    sink.write(DATA)
    [part] = tmp_path.iterdir()
    with part.open("ab") as file:
        file.write(b"more")
    with pytest.raises(CommitFailed, match="/x"):
        sink.commit()
    assert os.listdir(tmp_path) == []


def test_a_keyboard_interrupt_publishes_nothing(tmp_path, monkeypatch):
    sink = LocalSink(str(tmp_path / "x"))
    sink.write(DATA)
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        sink.commit()
    assert os.listdir(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of one megabyte."""
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True
        ).returncode
    ):
        pytest.skip("only root can mount a small file system")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk(small_disk):
    path = small_disk / "x.tar"
    with pytest.raises(DiskFull, match="/x"):
        with tarmac.TarWriter(path) as shard:
            for number in itertools.count():
                shard.write({"__key__": str(number), "txt": "x" * 10_000})
    assert os.listdir(small_disk) == []
    with tarmac.TarWriter(path) as shard:
        for number in range(90):
            shard.write({"__key__": str(number), "txt": "x" * 10_000})
    assert len(list(tarmac.read(path))) == 90
    with pytest.raises(DiskFull), tarmac.TarWriter(path) as shard:  # no space for both files
        for number in range(90):
            shard.write({"__key__": str(number), "txt": "y" * 10_000})
    assert next(iter(tarmac.read(path)))["txt"][:1] == b"x"


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
from tarmac.errors import CommitFailed
from tarmac.storage import open_write
sink = open_write(sys.argv[1])
try:
    for _ in range(4):
        sink.write(bytes(700_000))
    sink.commit()
except CommitFailed:
    sys.exit(7)
"""


def test_a_file_size_limit(tmp_path):
    import sys

    assert subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path / "x")]).returncode == 7
    assert os.listdir(tmp_path) == []


# ---- orphans and kills


def test_the_next_writer_removes_orphaned_part_files(tmp_path):
    path = tmp_path / "x.tar"
    for tail in ("0", "host-1-abc", "zz"):
        (tmp_path / f".x.tar.part-{tail}").write_bytes(b"half")
    (tmp_path / ".y.tar.part-0").write_bytes(b"of another")
    alive = LocalSink(str(path))
    names = set(os.listdir(tmp_path))
    assert {n for n in names if not n.startswith(".x.tar.part-")} == {".y.tar.part-0"}
    assert len(names) == 2
    put(path)
    alive.abort()
    assert set(os.listdir(tmp_path)) == {".y.tar.part-0", "x.tar"}


def test_a_part_file_mistaken_for_an_orphan_is_created_again(tmp_path, monkeypatch):
    from tarmac.storage import local

    real, taken = local.try_lock, []

    def late(fd, **kwargs):
        if not taken:  # another writer intervenes between creation and lock
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        return real(fd, **kwargs)

    monkeypatch.setattr(local, "try_lock", late)
    put(tmp_path / "x")
    assert os.listdir(tmp_path) == ["x"]


def write_shards(pattern: str) -> None:
    with tarmac.ShardWriter(pattern, max_samples=5, write=WriteOptions(overwrite=True)) as shards:
        for number in range(40):
            shards.write({"__key__": f"{number:04d}", "bin": bytes([number]) * 300_000, "txt": "end"})


def check_shards(directory: Path) -> None:
    for path in directory.glob("x-*.tar"):
        assert len(list(tarmac.read(path))) == 5


@pytest.mark.heavy
def test_200_killed_writers_leave_complete_shards_or_none(tmp_path):
    pattern = str(tmp_path / "x-%02d.tar")
    writing = Forked(lambda: write_shards(pattern))
    usual = writing.usual()

    def strike(seed: int) -> Crash:
        for path in tmp_path.glob("x-*"):
            path.unlink()
        return writing.crash(seed, usual)

    orphans: set[str] = set()

    def check() -> None:
        orphans.update(name for name in os.listdir(tmp_path) if name.startswith("."))
        check_shards(tmp_path)

    survive(rounds(200), strike, check)
    assert orphans
    write_shards(pattern)
    assert sorted(os.listdir(tmp_path)) == [f"x-{number:02d}.tar" for number in range(8)]


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[2])
import tarmac
from storage.test_local import write_shards
print("ready", flush=True)
write_shards(sys.argv[1])
"""


@pytest.mark.heavy
def test_killed_interpreters_leave_complete_shards_or_none(tmp_path):
    tests = str(Path(__file__).resolve().parents[1])
    pattern = str(tmp_path / "x-%02d.tar")
    survive(
        rounds(10), lambda seed: crash(SCRIPT, [pattern, tests], seed, 0.1), lambda: check_shards(tmp_path)
    )
    write_shards(pattern)
    assert sorted(os.listdir(tmp_path)) == [f"x-{number:02d}.tar" for number in range(8)]


def test_more_buffers_than_writev_accepts(tmp_path):
    sink = LocalSink(str(tmp_path / "x"))
    parts = [b""] * 2000 + [bytes(BUFFER * 100)]
    for part in parts:
        sink.write(part)
    sink.commit()
    assert (tmp_path / "x").stat().st_size == BUFFER * 100


@pytest.mark.parametrize("locks", [True, False])
def test_a_part_file_locked_by_a_cleaner_is_not_used(tmp_path, monkeypatch, locks):
    """A cleaner with the lock will remove the file; without locks, files are not cleaned."""
    from tarmac.storage import local

    tried = []

    def try_lock(fd):
        tried.append(fd)
        return locks and len(tried) > 1

    monkeypatch.setattr(local, "try_lock", try_lock)
    put(tmp_path / "x.tar")
    assert len(tried) == (2 if locks else local.LOCK_ATTEMPTS + 1)
    assert os.listdir(tmp_path) == ["x.tar"]
