"""Local files: mapped for reading, and written so that a name on disk is always a whole file."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
from tarmac.storage.types import DEFAULT_WRITE, ObjectInfo, Source, StorageOptions, WriteOptions

__all__ = ["LocalSink", "LocalSource", "local_path", "open_read", "open_write", "read_range", "stat"]

BUFFER = 1 * MIB


def local_path(url: str) -> str:
    """Return the file name: plain names are taken as they are, only `file:` URLs are decoded."""
    if url.startswith("file://"):
        return unquote(urlsplit(url.replace("#", "%23").replace("?", "%3F")).path)
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


def read_range(url: str, start: int, stop: int, _options: StorageOptions) -> bytes:
    """Return the bytes from `start` up to `stop`."""
    with LocalSource(url) as source:
        return os.pread(source.fileno(), stop - start, start)


class LocalSource(Source):
    """A file opened for reading from front to back."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._map: mmap.mmap | None = None
        try:
            self._fd = os.open(local_path(url), os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(self._fd).st_mode & 0o170000 == 0o040000:
                os.close(self._fd)
                raise NotFound("this is a directory, not a shard.", url=url, hint=f"{url.rstrip('/')}/*.tar")
        except OSError as error:
            if isinstance(error, TarmacError):
                raise
            raise _reading_failed(error, url) from error

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._fd

    def read(self, size: int, /) -> bytes:
        try:
            return os.read(self._fd, size)
        except OSError as error:
            raise TransferError(f"the disk failed: {error.strerror}.", url=self._url) from error

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
            self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LocalSink:
    """Write to a part file beside the target; publish by fsync and rename.

    The part file's name holds host and process, so that what a killed writer left behind can be told
    from a live one and is removed by the next writer of the same name.
    """

    def __init__(self, url: str, options: WriteOptions = DEFAULT_WRITE) -> None:
        self._url = url
        self._options = options
        self._target = Path(local_path(url))
        self._written = 0
        self._parts: list[bytes] = []
        self._buffered = 0
        self._fd = -1
        self._found = _identity(self._target)
        if self._found is not None and options.overwrite is False:
            raise CommitFailed("the file exists.", url=url, hint="overwrite=True, or another name.")
        host, pid = socket.gethostname(), os.getpid()
        _remove_orphans(self._target, host)
        name = f".{self._target.name[-100:]}.part-{host}-{pid}-{uuid.uuid4().hex[:12]}"
        self._part = self._target.with_name(name)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._fd = os.open(self._part, flags, 0o666)
        except OSError as error:
            raise self._failed(error, "could not be created") from error

    def write(self, data: bytes, /) -> None:
        """Take in bytes; they reach the disk in pieces of a megabyte."""
        self._parts.append(data)
        self._buffered += len(data)
        if self._buffered >= BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._fd < 0:
            raise WriteError("the file is closed.", url=self._url)
        view = memoryview(b"".join(self._parts))
        self._parts.clear()
        self._buffered = 0
        try:
            while view:
                done = os.write(self._fd, view)
                self._written += done
                view = view[done:]
        except OSError as error:
            self.abort()
            raise self._failed(error, "could not be written") from error

    def commit(self) -> None:
        """Publish the file under its name."""
        self._flush()
        try:
            size = os.fstat(self._fd).st_size
            if size != self._written:
                raise CommitFailed(f"the file has {size} bytes after writing {self._written}.", url=self._url)
            if self._options.durable:
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._publish()
            if self._options.durable:
                _sync_directory(self._target.parent)
        except OSError as error:
            self.abort()
            if isinstance(error, TarmacError):
                raise
            raise self._failed(error, "could not be put in place") from error

    def _publish(self) -> None:
        must_be_new = self._options.overwrite is False or (
            self._options.overwrite is None and self._found is None
        )
        if must_be_new:
            # A hard link fails if the name exists, which makes "only if new" one atomic step.
            try:
                os.link(self._part, self._target)
            except FileExistsError:
                raise self._clash() from None
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK):
                    raise
                if self._target.exists():
                    raise self._clash() from None
            else:
                os.unlink(self._part)
                return
        elif self._options.overwrite is None and _identity(self._target) not in (self._found, None):
            raise self._clash()
        os.replace(self._part, self._target)

    def _clash(self) -> CommitFailed:
        return CommitFailed(
            "another writer has published this name meanwhile; its file is untouched.",
            url=self._url,
            hint="give each writer its own names, or overwrite=True.",
        )

    def abort(self) -> None:
        """Remove the part file; the target stays as it was."""
        self._parts.clear()
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            self._part.unlink(missing_ok=True)

    def _failed(self, error: OSError, what: str) -> WriteError:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else CommitFailed
        return kind(f"the file {what}: {error.strerror or error}.", url=self._url)


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_orphans(target: Path, host: str) -> None:
    """Delete part files of this target whose writer, on this host, is dead."""
    prefix = f".{target.name[-100:]}.part-{host}-"
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            if not entry.name.startswith(prefix):
                continue
            pid = entry.name[len(prefix) :].partition("-")[0]
            if pid.isdigit() and not _alive(int(pid)):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _reading_failed(error: OSError, url: str) -> TarmacError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound("no such file.", url=url)
    if isinstance(error, PermissionError):
        return AccessDenied("the file may not be read.", url=url)
    return TransferError(f"the file cannot be opened: {error.strerror}.", url=url)
