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

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would wait for somebody at its other end.
_THERE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Folder:
    """An open directory. Errors are OSErrors, as those of `os`."""

    def __init__(self, path: str | os.PathLike[str], dir_fd: int | None = None) -> None:
        """Open a directory; under another one, a link to a directory is not one."""
        self.path = Path(path)
        flags = os.O_DIRECTORY | os.O_CLOEXEC | (0 if dir_fd is None else os.O_NOFOLLOW)
        try:
            self.fd = os.open(path, flags | os.O_RDONLY, dir_fd=dir_fd)
        except PermissionError:  # it may not be listed, but names in it may be used
            self.fd = os.open(path, flags | getattr(os, "O_PATH", 0), dir_fd=dir_fd)

    def inner(self, name: str, *, make: bool = False) -> Folder:
        """Open a directory in this one, and make it if it is not there, shared as this one is."""
        made = False
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o777, dir_fd=self.fd)
                made = True
        found = Folder(name, self.fd)
        found.path = self.path / name
        if made:
            self._share(found.fd, modes.S_IRWXG | modes.S_ISGID)
        return found

    def create(self, name: str) -> int:
        """Create a file that was not there, to be read and written; return its descriptor."""
        fd = os.open(name, _NEW, 0o666, dir_fd=self.fd)
        self._share(fd, modes.S_IRGRP | modes.S_IWGRP)
        return fd

    def _share(self, fd: int, bits: int) -> None:
        """Let the group use what is new where it may write to the directory, whatever the umask is.

        Not where each user looks after his own files, as in /tmp.
        """
        here = os.fstat(self.fd).st_mode
        if here & modes.S_IWGRP and not here & modes.S_ISVTX:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(fd, modes.S_IMODE(os.fstat(fd).st_mode) | here & bits)

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

    def has(self, name: str) -> bool:
        """Whether anything has this name, a link that leads nowhere included."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return False
        return True

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
        self.close()

    def sync(self) -> None:
        """Make the names in it durable."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing
                raise

    def close(self) -> None:
        """Let the directory go; nothing was written through it that could fail now."""
        fd, self.fd = self.fd, -1
        with contextlib.suppress(OSError):
            if fd >= 0:
                os.close(fd)
