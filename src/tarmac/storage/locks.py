"""File locks, which the operating system releases when their holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tarmac.storage.folder import Folder


def _lock(fd: int, *, shared: bool, wait: bool) -> None:
    fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file if it is free; return whether it is locked. Closing the file releases the lock.

    Return False on file systems without locks: a file that is not known to be free counts as in use.
    """
    try:
        _lock(fd, shared=shared, wait=False)
    except OSError:
        return False
    return True


def claim(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file unless another process has it. Return True on file systems without locks."""
    try:
        _lock(fd, shared=shared, wait=False)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


class _Holder(Protocol):
    def forget(self) -> None: ...


_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()


def forget_in_children(holder: _Holder) -> None:
    """Call `holder.forget()` in forked processes, which must not hold the locks of a dead parent."""
    _holders.add(holder)


def _in_child() -> None:
    for holder in list(_holders):
        holder.forget()


os.register_at_fork(after_in_child=_in_child)


class FileLock:
    """An exclusive lock on a named file, in `folder` if given. Symbolic links are not followed."""

    def __init__(self, path: str | Path, folder: Folder | None = None) -> None:
        self._path = path
        self._folder = folder
        self._at = None if folder is None else folder.fd
        self._fd = -1

    def acquire(self, *, wait: bool = True) -> bool:
        """Acquire the lock. Without `wait`, return False if another process holds it."""
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
            self.release()  # its last owner removed the file while we waited: lock the new one

    def _open(self) -> int:
        if self._folder is None:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        while True:
            try:
                return self._folder.open(str(self._path), os.O_RDWR)
            except PermissionError:  # another user's file; a read-only descriptor can be locked, too
                return self._folder.open(str(self._path))
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    return self._folder.create(str(self._path))

    def _is_current(self) -> bool:
        try:
            current = os.stat(self._path, dir_fd=self._at, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(current, os.fstat(self._fd))

    def remove(self) -> None:
        """Remove the file and release the lock; only its owner may do so."""
        with contextlib.suppress(OSError):
            os.unlink(self._path, dir_fd=self._at)
        self.release()

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
