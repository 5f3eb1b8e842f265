"""Local files: mapped for reading, and written so that a name on disk is always a whole file."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import mmap
import os
import stat as modes
import uuid
from pathlib import Path
from urllib.parse import unquote

from tarmac.errors import (
    AccessDenied,
    CommitFailed,
    DiskFull,
    NotFound,
    TarmacError,
    TransferError,
    WriteError,
)
from tarmac.limits import MIB
from tarmac.storage.folder import Folder
from tarmac.storage.locks import try_lock
from tarmac.storage.types import DEFAULT_WRITE, ObjectInfo, Source, StorageOptions, WriteOptions

__all__ = ["LocalSink", "LocalSource", "local_path", "open_read", "open_write", "read_range", "stat"]

LOCK_ATTEMPTS = 3
BUFFER = MIB // 4
"""Bytes that are written at once: few enough to stay in the processor's cache and in the allocator's hands.
Of a megabyte, each one's pages are given back and asked for again, which takes longer than writing them."""
EARLY = 8 * MIB
"""Bytes after which the system is told to begin with them, which halves the time to write a large shard."""
AT_ONCE = 1024
"""Parts that the system takes at once, at most."""
LARGE = 1 << 13
"""Parts that are larger than this, on average, are not copied to be written together."""


def local_path(url: str) -> str:
    """Return the file name: plain names are taken as they are, only `file:` URLs are decoded."""
    if url[:7].lower() == "file://":
        return unquote(url[7:].removeprefix("localhost"))
    return os.path.expanduser(url.removeprefix("file:"))


def open_read(url: str, _options: StorageOptions) -> LocalSource:
    """Open a file for reading."""
    return LocalSource(url)


def open_write(url: str, _options: StorageOptions, write: WriteOptions) -> LocalSink:
    """Begin a file that appears under its name only when it is whole."""
    return LocalSink(url, write)


def stat(url: str, _options: StorageOptions) -> ObjectInfo:
    """Return size and modification time."""
    try:
        found = os.stat(local_path(url))
    except OSError as error:
        raise _reading_failed(error, url) from error
    return ObjectInfo(found.st_size, f"{found.st_mtime_ns:x}")


def read_range(
    url: str, start: int, stop: int, _options: StorageOptions, _version: str | None = None
) -> bytes:
    """Return the bytes from `start` up to `stop`, or as many as there are."""
    with LocalSource(url) as source:
        return source.read_at(start, stop - start)


class LocalSource(Source):
    """A file opened for reading from front to back; `fd` is one that is open already."""

    def __init__(self, url: str, fd: int | None = None) -> None:
        self._url = url
        self._map: mmap.mmap | None = None
        try:
            self._fd = os.open(local_path(url), os.O_RDONLY | os.O_CLOEXEC) if fd is None else fd
        except OSError as error:
            raise _reading_failed(error, url) from error
        except ValueError:
            raise NotFound("no file has a NUL character in its name.", url=url) from None
        found = os.fstat(self._fd)
        if modes.S_ISDIR(found.st_mode):
            self.close()
            raise NotFound("this is a directory, not a shard.", url=url, hint=f"{url.rstrip('/')}/*.tar")
        if modes.S_ISREG(found.st_mode):
            self.length = found.st_size

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._fd

    def read(self, size: int, /) -> bytes:
        try:
            return os.read(self._fd, size)
        except OSError as error:
            raise TransferError(f"the disk failed: {error.strerror}.", url=self._url) from error

    def read_at(self, start: int, size: int) -> bytes:
        """Return up to `size` bytes from `start`; fewer only at the end of the file."""
        parts = []
        try:
            while size > 0 and (part := os.pread(self._fd, size, start)):
                parts.append(part)
                start += len(part)
                size -= len(part)
        except OSError as error:
            raise TransferError(f"the disk failed: {error.strerror}.", url=self._url) from error
        return b"".join(parts)

    def map(self) -> mmap.mmap | None:
        """Map the file, unless it is empty or not a plain file."""
        try:
            self._map = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)
        except (ValueError, OSError):
            return None
        self._map.madvise(mmap.MADV_SEQUENTIAL)
        return self._map

    def close(self) -> None:
        if self._map is not None:
            with contextlib.suppress(BufferError):  # somebody has a view of it, and with the last one it ends
                self._map.close()
            self._map = None
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class LocalSink:
    """Write to a part file beside the target; publish by fsync and rename.

    A writer holds a lock on its part file for as long as it lives, so that what a killed writer left
    behind can be told from a live one and is removed by the next writer of the same name.
    """

    def __init__(self, url: str, options: WriteOptions = DEFAULT_WRITE) -> None:
        self._url = url
        self._options = options
        self._written = self._on_its_way = 0
        self._parts: list[bytes] = []
        self._buffered = 0
        self._fd = -1
        self._folder: Folder | None = None
        try:
            # A symbolic link stays one: what it points to is replaced.
            self._target = Path(os.path.realpath(local_path(url)))
        except ValueError:
            raise CommitFailed("a file name cannot contain a NUL character.", url=url) from None
        self._found = self._existing()
        try:
            # From here on the directory is this one, also if its name comes to lead elsewhere.
            self._folder = Folder(self._target.parent)
            _remove_orphans(self._folder, self._target.name)
            self._fd, name = _begin_part(self._folder, self._target.name, 0o600 if options.private else 0o666)
            self._part = self._target.with_name(name)
        except OSError as error:
            self._close()
            raise self._failed(error, "could not be created") from error

    def _existing(self) -> tuple[int, int, int] | None:
        """Say what is under the name now; refuse what must not or cannot be replaced."""
        try:
            found = os.stat(local_path(self._url))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error, "could not be created") from error
        if not modes.S_ISREG(found.st_mode):
            raise CommitFailed(
                "this is a directory or a device, which a shard cannot replace.",
                url=self._url,
                hint='a file name, "-" for standard output, or a pipe: command.',
            )
        if self._options.overwrite is False:
            raise CommitFailed("the file exists.", url=self._url, hint="overwrite=True, or another name.")
        return _identity(found)

    def write(self, data: bytes, /) -> None:
        """Take in bytes; they reach the system in larger pieces."""
        self._parts.append(data)
        self._buffered += len(data)
        if self._buffered >= BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._fd < 0:
            raise WriteError("the file is closed.", url=self._url)
        parts, size = self._parts, self._buffered
        self._parts, self._buffered = [], 0
        try:
            # Few large parts are written from where they are; of many small ones a copy is cheaper.
            apart = 1 < len(parts) <= AT_ONCE and size >= len(parts) * LARGE
            done = os.writev(self._fd, parts) if apart else 0
            self._written += done
            view = memoryview(b"".join(parts) if done < size else b"")[done:]
            while view:
                done = os.write(self._fd, view)
                if not done:
                    raise OSError(errno.EIO, "nothing was written")
                self._written += done
                view = view[done:]
        except OSError as error:
            self.abort()
            raise self._failed(error, "could not be written") from error
        if self._options.durable and self._written - self._on_its_way >= EARLY:
            self._send_off()

    def _send_off(self) -> None:
        """Have the system begin to put on the disk what was written: at the end less is left to wait for."""
        start, self._on_its_way = self._on_its_way, self._written
        if hasattr(os, "posix_fadvise"):
            # Pages that are not needed any more but not on the disk yet are sent there, without waiting.
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, start, self._written - start, os.POSIX_FADV_DONTNEED)

    def commit(self) -> None:
        """Publish the file under its name."""
        self._flush()
        try:
            size = os.fstat(self._fd).st_size
            if size != self._written:
                raise CommitFailed(f"the file has {size} bytes after writing {self._written}.", url=self._url)
            if self._options.durable:
                os.fsync(self._fd)
            self._publish()
        except OSError as error:
            self.abort()
            if isinstance(error, TarmacError):
                raise
            raise self._failed(error, "could not be put in place") from error
        except BaseException:
            self.abort()
            raise

    def _publish(self) -> None:
        """Give the part file its name."""
        folder = self._folder
        assert folder is not None
        # Some file systems report a failed write only at close; the copy keeps the lock until the end.
        written, self._fd = self._fd, os.dup(self._fd)
        os.close(written)
        fresh = self._rename(folder)
        if folder.stat(self._target.name) is None:
            raise CommitFailed(
                "another process has put something else in the place of the file.", url=self._url
            )
        if self._options.durable:
            try:
                folder.sync()
            except OSError:
                if fresh:
                    folder.remove(self._target.name)
                raise
        self._close()

    def _rename(self, folder: Folder) -> bool:
        """Put the part file under its name, new or in place of what was found; say whether it is new."""
        overwrite, part, name = self._options.overwrite, self._part.name, self._target.name
        if overwrite is False or (overwrite is None and self._found is None):
            # A hard link fails if the name exists, which makes "only if new" one atomic step.
            try:
                os.link(part, name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd, follow_symlinks=False)
            except FileExistsError:
                raise self._clash() from None
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK):
                    raise
                if folder.has(name):  # no hard links here: a check and a rename have to do
                    raise self._clash() from None
            else:
                folder.remove(part)  # if that fails, the next writer of this name tries again
                return True
        elif overwrite is None and _identity(folder.stat(name)) not in (self._found, None):
            raise self._clash()
        fresh = not folder.has(name)
        folder.move(part, folder, name)
        return fresh

    def _clash(self) -> CommitFailed:
        return CommitFailed(
            "another writer has published this name meanwhile; its file is untouched.",
            url=self._url,
            hint="give each writer its own names, or overwrite=True.",
        )

    def abort(self) -> None:
        """Remove the part file; the target stays as it was."""
        self._parts.clear()
        if self._folder is not None:
            self._folder.remove(self._part.name)
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.close(fd)
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _failed(self, error: OSError, what: str) -> WriteError:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else CommitFailed
        return kind(f"the file {what}: {error.strerror or error}.", url=self._url)


def _identity(found: os.stat_result | None) -> tuple[int, int, int] | None:
    return None if found is None else (found.st_dev, found.st_ino, found.st_mtime_ns)


def _part_prefix(name: str) -> str:
    """What all part files of a target begin with; hidden, so that `*.tar` does not find them."""
    if len(os.fsencode(name)) > 200:  # file systems allow 255 bytes, and a suffix follows
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return f".{name}.part-"


def _begin_part(folder: Folder, name: str, mode: int) -> tuple[int, str]:
    """Create a part file and lock it."""
    for attempt in itertools.count():
        part = f"{_part_prefix(name)}{uuid.uuid4().hex[:16]}"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder.fd)
        # Some file systems know no locks; there nobody takes it for an orphan, either.
        if (try_lock(fd) or attempt == LOCK_ATTEMPTS) and os.fstat(fd).st_nlink:
            return fd, part
        os.close(fd)  # another writer took it for an orphan before it was locked
        folder.remove(part)
    raise AssertionError("unreachable")


def _remove_orphans(folder: Folder, name: str) -> None:
    """Delete part files of this target that no living writer holds."""
    with contextlib.suppress(OSError):
        for part in folder.names(_part_prefix(name)):
            with contextlib.suppress(OSError):
                fd = folder.open(part, os.O_RDWR)
                try:
                    if try_lock(fd):
                        folder.remove(part)
                finally:
                    os.close(fd)


def _reading_failed(error: OSError, url: str) -> TarmacError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound("no such file.", url=url)
    if isinstance(error, PermissionError):
        return AccessDenied("the file may not be read.", url=url)
    return TransferError(f"the file cannot be opened: {error.strerror}.", url=url)
