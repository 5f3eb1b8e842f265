"""An open directory, for directories that other users can write to.

Names are resolved relative to the open directory, and symbolic links are not followed. So operations cannot
leave the directory, even if its name, or a name in it, is replaced by a link at the same time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as modes
from pathlib import Path

from tarmac.storage.types import Closing

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe would wait for a writer.
_EXISTING = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Folder(Closing):
    """An open directory. Its methods raise OSError, like those of `os`."""

    def __init__(self, path: str | os.PathLike[str], dir_fd: int | None = None) -> None:
        """Open a directory; relative to another one, links are not followed."""
        self.path = Path(path)
        flags = os.O_DIRECTORY | os.O_CLOEXEC | (0 if dir_fd is None else os.O_NOFOLLOW)
        try:
            self.fd = os.open(path, flags | os.O_RDONLY, dir_fd=dir_fd)
        except PermissionError:  # it cannot be listed, but names in it can be used
            self.fd = os.open(path, flags | getattr(os, "O_PATH", 0), dir_fd=dir_fd)

    def open_folder(self, name: str, *, create: bool = False) -> Folder:
        """Open a subdirectory; with `create`, create it if it does not exist, shared like this one."""
        created = False
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o777, dir_fd=self.fd)
                created = True
        folder = Folder(name, self.fd)
        folder.path = self.path / name
        if created:
            self._share(folder.fd, modes.S_IRWXG | modes.S_ISGID)
        return folder

    def create(self, name: str) -> int:
        """Create a new file for reading and writing; return its descriptor."""
        fd = os.open(name, _NEW, 0o666, dir_fd=self.fd)
        self._share(fd, modes.S_IRGRP | modes.S_IWGRP)
        return fd

    def _share(self, fd: int, bits: int) -> None:
        """Give the group access to a new file if it can write to the directory, whatever the umask is.

        Directories with the sticky bit, such as /tmp, are exempt: there users keep their own files.
        """
        mode = os.fstat(self.fd).st_mode
        if mode & modes.S_IWGRP and not mode & modes.S_ISVTX:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(fd, modes.S_IMODE(os.fstat(fd).st_mode) | mode & bits)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open an existing regular file; raise for links, pipes and directories."""
        fd = os.open(name, flags | _EXISTING, dir_fd=self.fd)
        if not modes.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", name)
        return fd

    def stat(self, name: str) -> os.stat_result | None:
        """Return the status of a regular file, or None if there is none of this name."""
        try:
            status = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return None
        return status if modes.S_ISREG(status.st_mode) else None

    def has(self, name: str) -> bool:
        """Return whether the name exists, also as a broken link."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def names(self, prefix: str = "") -> list[str]:
        """Return the names in the directory that begin with `prefix`."""
        return [name for name in os.listdir(self.fd) if name.startswith(prefix)]

    def remove(self, name: str) -> int:
        """Remove a file or a link if possible; return the bytes freed."""
        with contextlib.suppress(OSError):
            size = os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_size
            os.unlink(name, dir_fd=self.fd)
            return size
        return 0

    def move(self, name: str, target: Folder, new_name: str) -> None:
        """Move a file to another directory; replace an existing file."""
        os.replace(name, new_name, src_dir_fd=self.fd, dst_dir_fd=target.fd)

    def set_time(self, name: str, time: int) -> None:
        """Set the modification time of a file, in nanoseconds since 1970, if permitted."""
        with contextlib.suppress(OSError):
            os.utime(name, ns=(time, time), dir_fd=self.fd, follow_symlinks=False)

    def sync(self) -> None:
        """Flush the names in the directory to disk."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not supported by the file system
                raise

    def close(self) -> None:
        """Close the directory; errors are ignored, because nothing was written to it."""
        fd, self.fd = self.fd, -1
        with contextlib.suppress(OSError):
            if fd >= 0:
                os.close(fd)
