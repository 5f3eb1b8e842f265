"""Local files: memory-mapped for reading, and written so that a name on disk is always a complete file."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import mmap
import os
import stat as modes
import uuid
from collections.abc import Iterator
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
from tarmac.storage.store import Store
from tarmac.storage.types import DEFAULT_WRITE, ObjectInfo, Source, StorageOptions, WriteOptions

LOCK_ATTEMPTS = 3
BUFFER = MIB // 4
"""Bytes per write call: few enough to stay in the processor's cache and in the allocator's free lists. The
allocator returns the pages of a megabyte to the system and requests them again, which costs more than writing."""
FLUSH_BYTES = 8 * MIB
"""Bytes after which the system is asked to start writing to disk, which halves the time for a large shard."""
MAX_VECTOR = 1024
"""Largest number of buffers that `writev` accepts."""
LARGE = 1 << 13
"""Mean size from which buffers are passed to `writev` instead of being joined."""


def local_path(url: str) -> str:
    """Return the path that a URL names. Plain names are used unchanged; `file:` URLs are decoded."""
    if url[:7].lower() == "file://":
        return unquote(url[7:].removeprefix("localhost"))
    return os.path.expanduser(url.removeprefix("file:"))


class LocalStore(Store):
    """Files on this machine."""

    def open_read(self, url: str, storage: StorageOptions, /) -> LocalSource:
        return LocalSource(url)

    def open_write(self, url: str, storage: StorageOptions, write: WriteOptions, /) -> LocalSink:
        return LocalSink(url, write)

    def stat(self, url: str, storage: StorageOptions, /) -> ObjectInfo:
        try:
            return _info(os.stat(local_path(url)))
        except OSError as error:
            raise _reading_failed(error, url) from error

    def read_range(
        self, url: str, start: int, stop: int, storage: StorageOptions, version: str | None, /
    ) -> bytes:
        with LocalSource(url) as source:
            return source.read_at(start, stop - start)

    def delete(self, url: str, storage: StorageOptions, /) -> None:
        try:
            os.unlink(local_path(url))
        except FileNotFoundError:
            return
        except OSError as error:
            raise WriteError(f"the file cannot be deleted: {error.strerror}.", url=url) from error

    def list_objects(self, prefix: str, storage: StorageOptions, /) -> Iterator[tuple[str, ObjectInfo]]:
        path = local_path(prefix)
        parent = os.path.dirname(path)
        for folder, _, names in os.walk(parent or "."):
            for name in names:
                file = os.path.join(folder if parent else folder[2:], name)
                with contextlib.suppress(FileNotFoundError):  # removed since, or a broken link
                    if file.startswith(path):
                        yield file, _info(os.stat(file))

    def glob(self, pattern: str, storage: StorageOptions, /) -> Iterator[str]:
        return glob.iglob(local_path(pattern), recursive=True)


def _info(status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(status.st_size, f"{status.st_mtime_ns:x}")


class LocalSource(Source):
    """A file that is open for reading from start to end; `fd` is an open descriptor to use."""

    def __init__(self, url: str, fd: int | None = None) -> None:
        self.url = url
        self._map: mmap.mmap | None = None
        try:
            self._fd = os.open(local_path(url), os.O_RDONLY | os.O_CLOEXEC) if fd is None else fd
        except OSError as error:
            raise _reading_failed(error, url) from error
        except ValueError:
            raise NotFound("a file name cannot contain a NUL character.", url=url) from None
        status = os.fstat(self._fd)
        if modes.S_ISDIR(status.st_mode):
            self.close()
            raise NotFound("this is a directory, not a shard.", url=url, hint=f"{url.rstrip('/')}/*.tar")
        if modes.S_ISREG(status.st_mode):
            self.length = status.st_size

    def fileno(self) -> int:
        return self._fd

    def read(self, size: int, /) -> bytes:
        try:
            return os.read(self._fd, size)
        except OSError as error:
            raise TransferError(f"reading failed: {error.strerror}.", url=self.url) from error

    def read_at(self, start: int, size: int) -> bytes:
        """Return up to `size` bytes from `start`; fewer only at the end of the file."""
        return read_at(self._fd, start, size, self.url)

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
            with contextlib.suppress(BufferError):  # a view exists; the map is freed with the last one
                self._map.close()
            self._map = None
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def read_at(fd: int, start: int, size: int, url: str) -> bytes:
    """Return up to `size` bytes of an open file from `start`; fewer only at its end."""
    parts = []
    try:
        data = os.pread(fd, size, start)
        if len(data) == size:  # in one call, as nearly always
            return data
        while size > 0 and (part := os.pread(fd, size, start)):
            parts.append(part)
            start += len(part)
            size -= len(part)
    except OSError as error:
        raise TransferError(f"reading failed: {error.strerror}.", url=url) from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


class LocalSink:
    """Write to a part file beside the target; publish by fsync and rename.

    A writer holds a lock on its part file while it is open. The next writer of the same name removes part
    files without a lock, which killed writers have left.
    """

    def __init__(self, url: str, options: WriteOptions = DEFAULT_WRITE) -> None:
        self._url = url
        self._options = options
        self._written = self._flushed = 0
        self._parts: list[bytes] = []
        self._buffered = 0
        self._fd = -1
        self._folder: Folder | None = None
        try:
            # The target of a symbolic link is replaced, not the link.
            self._target = Path(os.path.realpath(local_path(url)))
        except ValueError:
            raise CommitFailed("a file name cannot contain a NUL character.", url=url) from None
        self._existing = self._check_target()
        try:
            # The open directory stays the same, also if its name is changed to lead elsewhere.
            self._folder = Folder(self._target.parent)
            _remove_orphans(self._folder, self._target.name)
            mode = 0o600 if options.private else 0o666
            self._fd, self._part = _create_part(self._folder, self._target.name, mode)
        except OSError as error:
            self._close()
            raise self._failed(error, "could not be created") from error

    def _check_target(self) -> tuple[int, int, int] | None:
        """Return the identity of the existing file; raise if it must not or cannot be replaced."""
        try:
            status = os.stat(local_path(self._url))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error, "could not be created") from error
        if modes.S_ISDIR(status.st_mode):
            hint = f"a name in it: {self._url.rstrip('/')}/NAME"
            raise CommitFailed("the target is a directory.", url=self._url, hint=hint)
        if not modes.S_ISREG(status.st_mode):
            raise CommitFailed(
                "the target is a device.",
                url=self._url,
                hint='a file name, "-" for standard output, or a pipe: command.',
            )
        if self._options.overwrite is False:
            raise CommitFailed(
                "the file exists.",
                url=self._url,
                hint="write=tarmac.storage.WriteOptions(overwrite=True), or another name.",
            )
        return _identity(status)

    def write(self, data: bytes, /) -> None:
        """Append bytes; they are passed to the system in larger chunks."""
        self._parts.append(data)
        self._buffered += len(data)
        if self._buffered >= BUFFER:
            self._flush()

    def tell(self) -> int:
        return self._written + self._buffered

    def read_back(self, start: int, size: int) -> bytes:
        if self._parts:
            self._flush()
        return read_at(self._fd, start, size, self._url)

    def _flush(self) -> None:
        if self._fd < 0:
            raise WriteError("the file is closed.", url=self._url)
        parts, size = self._parts, self._buffered
        self._parts, self._buffered = [], 0
        try:
            # A few large buffers are written without a copy; joining many small ones is cheaper.
            vector = 1 < len(parts) <= MAX_VECTOR and size >= len(parts) * LARGE
            done = os.writev(self._fd, parts) if vector else 0
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
        new = self._written - self._flushed
        if self._options.durable and new >= FLUSH_BYTES:
            # Start writing dirty pages to disk without waiting, so that the final fsync takes less time.
            with contextlib.suppress(OSError, AttributeError):  # macOS has no such call
                os.posix_fadvise(self._fd, self._flushed, new, os.POSIX_FADV_DONTNEED)
            self._flushed = self._written

    def commit(self) -> None:
        self._flush()
        try:
            size = os.fstat(self._fd).st_size
            if size != self._written:
                what = f"expected a file of {self._written} bytes, got {size}."
                raise CommitFailed(what, url=self._url)
            if self._options.durable:
                os.fsync(self._fd)
            self._publish()
        except BaseException as error:
            self.abort()
            if isinstance(error, OSError) and not isinstance(error, TarmacError):
                raise self._failed(error, "could not be published") from error
            raise

    def _publish(self) -> None:
        """Move the part file to its final name."""
        folder = self._folder
        assert folder is not None
        # Some file systems report a failed write only at close; the duplicate holds the lock until the end.
        written, self._fd = self._fd, os.dup(self._fd)
        os.close(written)
        is_new = self._rename(folder)
        if folder.stat(self._target.name) is None:
            raise CommitFailed("another process has replaced or removed the file.", url=self._url)
        if self._options.durable:
            try:
                folder.sync()
            except OSError:
                if is_new:
                    folder.remove(self._target.name)
                raise
        self._close()

    def _rename(self, folder: Folder) -> bool:
        """Move the part file to its final name; return whether no file existed there."""
        overwrite, part, name = self._options.overwrite, self._part, self._target.name
        if overwrite is False or (overwrite is None and self._existing is None):
            # A hard link fails if the name exists, so "only if new" is one atomic step.
            try:
                os.link(part, name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd, follow_symlinks=False)
            except FileExistsError:
                if overwrite is None and _equal(folder, part, name):
                    folder.remove(
                        part
                    )  # two writers of the same bytes, as of a unit that was delivered twice
                    return False
                raise self._clash() from None
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK):
                    raise
                if folder.has(name):  # without hard links, check and rename
                    raise self._clash() from None
            else:
                folder.remove(part)  # if that fails, the next writer of this name removes it
                return True
        elif overwrite is None and _identity(folder.stat(name)) not in (self._existing, None):
            raise self._clash()
        is_new = not folder.has(name)
        folder.move(part, folder, name)
        return is_new

    def _clash(self) -> CommitFailed:
        return CommitFailed(
            "another writer has published this name; its file is unchanged.",
            url=self._url,
            hint="give each writer its own names, or write=tarmac.storage.WriteOptions(overwrite=True).",
        )

    def abort(self) -> None:
        self._parts.clear()
        if self._folder is not None:
            self._folder.remove(self._part)
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
        error_class = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else CommitFailed
        return error_class(f"the file {what}: {error.strerror or error}.", url=self._url)


def _equal(folder: Folder, one: str, other: str) -> bool:
    """Return whether two files of a folder have the same content."""
    with open(folder.open(one), "rb") as first, open(folder.open(other), "rb") as second:
        while (data := first.read(MIB)) == second.read(MIB):
            if not data:
                return True
    return False


def _identity(status: os.stat_result | None) -> tuple[int, int, int] | None:
    return None if status is None else (status.st_dev, status.st_ino, status.st_mtime_ns)


def _part_prefix(name: str) -> str:
    """Return the prefix of the part files of a target; hidden, so that `*.tar` does not match them."""
    if len(os.fsencode(name)) > 200:  # file systems allow 255 bytes, including the suffix
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return f".{name}.part-"


def _create_part(folder: Folder, name: str, mode: int) -> tuple[int, str]:
    """Create a part file and lock it; return its descriptor and name."""
    attempts = LOCK_ATTEMPTS
    while True:
        part = f"{_part_prefix(name)}{uuid.uuid4().hex[:16]}"
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder.fd)
        # Some file systems have no locks; there no writer removes orphans, either.
        if (try_lock(fd) or attempts < 1) and os.fstat(fd).st_nlink:
            return fd, part
        os.close(fd)  # another writer treated it as an orphan before it was locked
        folder.remove(part)
        attempts -= 1


def _remove_orphans(folder: Folder, name: str) -> None:
    """Remove part files of this target that no writer has locked."""
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
        return AccessDenied("permission to read the file is denied.", url=url)
    return TransferError(f"the file cannot be opened: {error.strerror}.", url=url)
