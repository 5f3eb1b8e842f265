"""Local files are published atomically, and replace only permitted targets."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from harness import rounds
from harness.faultfs import Fault, faulty
from storage.test_local import DATA, put
from tarmac.errors import CommitFailed, WriteError
from tarmac.storage import WriteOptions, open_write
from tarmac.storage.local import LocalSink


def test_the_name_appears_at_commit(tmp_path):
    path = tmp_path / "x.tar"
    sink = open_write(str(path))
    sink.write(DATA)
    assert not path.exists()
    sink.commit()
    assert path.read_bytes() == DATA
    assert os.listdir(tmp_path) == ["x.tar"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    with pytest.raises(WriteError, match="closed"):
        sink.commit()
    sink.abort()
    assert path.read_bytes() == DATA


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_abort_leaves_no_trace(tmp_path):
    path = tmp_path / "x.tar"
    for old in (None, b"old"):
        if old:
            path.write_bytes(old)
        sink = open_write(str(path))
        sink.write(DATA)
        sink.abort()
        sink.abort()
        assert os.listdir(tmp_path) == (["x.tar"] if old else [])
        with pytest.raises(WriteError):
            sink.commit()
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("overwrite", [True, False, None])
def test_overwrite(tmp_path, overwrite, durable):
    path, options = tmp_path / "x.tar", WriteOptions(overwrite, durable)
    put(path, b"one", options)
    assert path.read_bytes() == b"one"
    if overwrite is False:
        with pytest.raises(CommitFailed, match="exists"):
            put(path, b"two", options)
    else:
        put(path, b"two", options)
    assert path.read_bytes() == (b"one" if overwrite is False else b"two")
    assert os.listdir(tmp_path) == ["x.tar"]


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("second", [True, False, None])
def test_two_writers_of_one_name(tmp_path, second, old):
    path = tmp_path / "x.tar"
    if old and second is False:
        return  # rejected immediately, see test_overwrite
    if old:
        path.write_bytes(old)
    a, b = LocalSink(str(path)), LocalSink(str(path), WriteOptions(second))
    a.write(b"first")
    b.write(b"second")
    a.commit()
    if second:
        b.commit()
    else:
        with pytest.raises(CommitFailed, match=r"x\.tar: .*overwrite=True"):
            b.commit()
    assert path.read_bytes() == (b"second" if second else b"first")
    assert os.listdir(tmp_path) == ["x.tar"]


def test_200_races_have_one_winner(tmp_path):
    for number in range(rounds(200)):
        path = tmp_path / f"{number}.tar"
        sinks = [LocalSink(str(path)) for _ in range(3)]
        won = []
        start = threading.Barrier(3)

        def race(index, sinks=sinks, won=won, start=start):
            sinks[index].write(b"%d" % index * 1000)
            start.wait()
            try:
                sinks[index].commit()
                won.append(index)
            except CommitFailed:
                pass

        threads = [threading.Thread(target=race, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert path.read_bytes() == b"%d" % won[0] * 1000
    assert len(os.listdir(tmp_path)) == rounds(200)


def test_durable_means_synced(tmp_path):
    for durable, count in ((True, 2), (False, 0)):
        fault = Fault(99, calls=("fsync",))
        with faulty(fault):
            put(tmp_path / "x", options=WriteOptions(durable=durable))
        assert fault.seen == count


def test_file_systems_without_hard_links(tmp_path):
    with faulty(Fault(1, errno.EPERM, ("link",))):
        put(tmp_path / "x")
    assert os.listdir(tmp_path) == ["x"]
    a, b = LocalSink(str(tmp_path / "y")), LocalSink(str(tmp_path / "y"))
    a.commit()
    with faulty(Fault(1, errno.EPERM, ("link",))), pytest.raises(CommitFailed, match=r"y: .*overwrite=True"):
        b.commit()
    assert sorted(os.listdir(tmp_path)) == ["x", "y"]


def test_the_target_of_a_symbolic_link_is_replaced(tmp_path):
    (tmp_path / "d").mkdir()
    for name in ("there", "dangling"):
        (tmp_path / name).symlink_to(f"d/{name}.tar")
    (tmp_path / "d" / "there.tar").write_bytes(b"old")
    for name in ("there", "dangling"):
        put(tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "d" / f"{name}.tar").read_bytes() == DATA


def test_devices_and_directories_are_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for target in (tmp_path, tmp_path / "fifo", "/dev/null", "/dev/zero"):
        for overwrite in (True, None):
            with pytest.raises(CommitFailed, match="the target is"):
                LocalSink(str(target), WriteOptions(overwrite))
    assert os.path.exists("/dev/null")
    assert not Path("/dev/null").is_file()


def test_invalid_names(tmp_path):
    for name in ("none/x.tar", "a\0b", "x" * 300):
        with pytest.raises(CommitFailed):
            LocalSink(str(tmp_path / name))
    for name in ("x" * 251 + ".tar", "é" * 125, "a b#?%:{}.tar"):
        put(tmp_path / name)
        assert (tmp_path / name).read_bytes() == DATA
    assert len(os.listdir(tmp_path)) == 3
