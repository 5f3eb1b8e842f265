"""Locks on files that the operating system releases when their holder dies."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tarmac.storage.folder import Folder

__all__ = ["claim", "FileLock", "keep_from_children", "try_lock"]

if sys.platform == "win32":  # pragma: no cover - the same calls through msvcrt, which has no shared locks
    import msvcrt

    def _lock(fd: int, *, shared: bool, wait: bool) -> None:
        msvcrt.locking(fd, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(fd: int, *, shared: bool, wait: bool) -> None:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file if no one is in the way; closing the file lets go.

    Also false where the file system knows no locks: what is not known to be free counts as used.
    """
    try:
        _lock(fd, shared=shared, wait=False)
    except OSError:
        return False
    return True


def claim(fd: int) -> bool:
    """Lock an open file unless somebody has it; where the file system knows no locks, nobody can have it."""
    try:
        _lock(fd, shared=False, wait=False)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


class _Holder(Protocol):
    def forget(self) -> None: ...


_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()


def keep_from_children(holder: _Holder) -> None:
    """Call `holder.forget()` in forked processes, which must not hold the locks of a parent that died."""
    _holders.add(holder)


def _in_child() -> None:
    for holder in list(_holders):
        holder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class FileLock:
    """An exclusive lock under a name of its own, which its owner may remove when it is done with.

    The name is that of a file, in `folder` if one is given. It is not followed if it is a symbolic link.
    """

    def __init__(self, path: str | Path, folder: Folder | None = None) -> None:
        self._path = path
        self._folder = folder
        self._at = None if folder is None else folder.fd
        self._fd = -1

    def own(self, *, wait: bool = True) -> bool:
        """Take the lock, waiting for its holder if there is one; false if that was not wanted."""
        while True:
            self._fd = self._open()
            try:
                _lock(self._fd, shared=False, wait=wait)
            except BlockingIOError:
                self.release()
                return False
            except BaseException:
                self.release()
                raise
            if self._is_current():
                return True
            self.release()  # its last owner removed the name while we waited: the lock is elsewhere now

    def _open(self) -> int:
        if self._folder is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
            return os.open(self._path, flags, 0o666)
        while True:
            try:
                return self._folder.open(str(self._path), os.O_RDWR)
            except PermissionError:  # another user's, who lets us look but not write; that is enough
                return self._folder.open(str(self._path))
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    return self._folder.create(str(self._path))

    def _is_current(self) -> bool:
        try:
            found = os.stat(self._path, dir_fd=self._at, follow_symlinks=False)
        except OSError:
            return False
        mine = os.fstat(self._fd)
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def remove(self) -> None:
        """Remove the name and let go; only for its owner."""
        with contextlib.suppress(OSError):
            os.unlink(self._path, dir_fd=self._at)
        self.release()

    def release(self) -> None:
        """Let go."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
