"""A directory that is held open, for directories that other users may write to.

What is done through it stays in it, also when its name, or a name in it, is swapped for a symbolic link
meanwhile: names are looked up in the open directory, and links are not followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as modes
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Folder"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would wait for somebody at its other end.
_THERE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Folder:
    """An open directory. Errors are OSErrors, as those of `os`."""

    def __init__(self, path: str | os.PathLike[str], dir_fd: int | None = None) -> None:
        """Open a directory; under another one, a link to a directory is not one."""
        self.path = Path(path)
        self.fd = os.open(path, _DIRECTORY | (0 if dir_fd is None else os.O_NOFOLLOW), dir_fd=dir_fd)

    def inner(self, name: str, *, make: bool = False) -> Folder:
        """Open a directory in this one; one that is made is for the same users."""
        made = False
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self.fd)
                made = True
        found = Folder(name, self.fd)
        found.path = self.path / name
        if made:
            os.fchmod(found.fd, os.fstat(self.fd).st_mode & 0o7777)
        return found

    def create(self, name: str) -> int:
        """Create a file that was not there, to be read and written; return its descriptor.

        Those may read and write it who may do so with the directory, whatever the umask is. In a directory
        where everybody looks after his own files (/tmp), nobody else may write it.
        """
        fd = os.open(name, _NEW, 0o600, dir_fd=self.fd)
        found = os.fstat(self.fd).st_mode
        shared = found & (0o044 if found & modes.S_ISVTX else 0o064)
        if shared:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(fd, 0o600 | shared)
        return fd

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open a file that is there; neither a link nor a pipe nor a directory is one."""
        fd = os.open(name, flags | _THERE, dir_fd=self.fd)
        if not modes.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", name)
        return fd

    def stat(self, name: str) -> os.stat_result | None:
        """Return what is known about a file; None if there is no file of this name."""
        try:
            found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return None
        return found if modes.S_ISREG(found.st_mode) else None

    def names(self, prefix: str = "") -> list[str]:
        """Return the names that begin with `prefix`."""
        return [name for name in os.listdir(self.fd) if name.startswith(prefix)]

    def remove(self, name: str) -> int:
        """Remove a file, or a link itself, if it is there and can be removed; return the bytes it had."""
        with contextlib.suppress(OSError):
            size = os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_size
            os.unlink(name, dir_fd=self.fd)
            return size
        return 0

    def move(self, name: str, to: Folder, new: str) -> None:
        """Give a file a name in another directory, in place of what has it."""
        os.replace(name, new, src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def set_time(self, name: str, when: int) -> None:
        """Set when a file was last changed, in nanoseconds since 1970, if that is ours to set."""
        with contextlib.suppress(OSError):
            os.utime(name, ns=(when, when), dir_fd=self.fd, follow_symlinks=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.fd)
