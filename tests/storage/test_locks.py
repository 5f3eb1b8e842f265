"""File locks, which the system releases when their holder dies."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time

import pytest

from harness.waiting import FOREVER, TIMEOUT, until
from tarmac.storage import locks
from tarmac.storage.locks import FileLock, try_lock


def test_one_owner_at_a_time(tmp_path):
    a, b = FileLock(tmp_path / "l"), FileLock(tmp_path / "l")
    assert a.acquire()
    assert not b.acquire(wait=False)
    a.release()
    a.release()
    assert b.acquire(wait=False)
    b.release()


@pytest.fixture
def waiting(monkeypatch):
    """Return an event that is set when a blocking lock is requested."""
    asked, real = threading.Event(), locks._lock

    def lock(fd, *, shared, wait):
        if wait:
            asked.set()
        real(fd, shared=shared, wait=wait)

    monkeypatch.setattr(locks, "_lock", lock)
    return asked


def test_waiting(tmp_path, waiting):
    a, b = FileLock(tmp_path / "l"), FileLock(tmp_path / "l")
    a.acquire(wait=False)
    got = []
    thread = threading.Thread(target=lambda: got.append(b.acquire()))
    thread.start()
    assert waiting.wait(TIMEOUT)
    assert got == []
    a.release()
    thread.join(TIMEOUT)
    assert got == [True]
    b.release()


def test_a_lock_removed_while_waiting_is_created_again(tmp_path, waiting):
    path = tmp_path / "l"
    a, b, c = (FileLock(path) for _ in range(3))
    a.acquire(wait=False)
    thread = threading.Thread(target=b.acquire)
    thread.start()
    assert waiting.wait(TIMEOUT)
    a.remove()
    thread.join(TIMEOUT)
    assert path.exists()
    assert not c.acquire(wait=False)  # b holds the new one, not the removed one
    b.remove()
    assert not path.exists()


@pytest.mark.processes
def test_a_dead_owner_releases_the_lock(tmp_path):
    pid = os.fork()
    if pid == 0:
        FileLock(tmp_path / "l").acquire()
        (tmp_path / "ready").touch()
        time.sleep(FOREVER)
        os._exit(0)
    assert until((tmp_path / "ready").exists)
    lock = FileLock(tmp_path / "l")
    assert not lock.acquire(wait=False)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert lock.acquire(wait=False)
    lock.release()


def test_shared_and_exclusive(tmp_path):
    path = tmp_path / "x"
    path.touch()
    fds = [os.open(path, os.O_RDWR) for _ in range(3)]
    assert try_lock(fds[0], shared=True)
    assert try_lock(fds[1], shared=True)
    assert not try_lock(fds[2])
    os.close(fds[0])
    os.close(fds[1])
    assert try_lock(fds[2])
    os.close(fds[2])
    assert not try_lock(fds[2])


def test_a_missing_directory(tmp_path):
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "none" / "l").acquire()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tarmac.storage.locks._lock", lambda *_, **__: (_ for _ in ()).throw(OSError(38, "no locks"))
        )
        with pytest.raises(OSError, match="no locks"):
            FileLock(tmp_path / "l").acquire()


def test_claims_on_a_file_system_without_locks(tmp_path, monkeypatch):
    with open(tmp_path / "a", "wb") as one, open(tmp_path / "a", "rb") as two:
        assert locks.claim(one.fileno())
        assert not locks.claim(two.fileno())

        def no_locks_here(*_, **__):
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(locks, "_lock", no_locks_here)
        assert locks.claim(two.fileno())
        assert not locks.try_lock(two.fileno())
