"""The bytes of a field: from a file, an object, a command, or as they were given."""

from __future__ import annotations

import contextlib
import os
import stat as modes
import time
from collections.abc import Iterator

from tarmac.errors import AccessDenied, NotFound, ObjectChanged, Stalled, TarmacError, TransferError
from tarmac.samples.grouping import Sample
from tarmac.storage import StorageOptions, is_local, open_read, scheme_of, stat
from tarmac.storage.local import local_path
from tarmac.tools.pack.sources.source import UNSEEN, File, Load, Seen, Where

__all__ = ["file_at", "loading", "look_at", "read_file"]

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Nobody waits for the other end of a named pipe, which is an error anyway."""
_CHUNK = 1 << 20
_KIND = 0o170000
"""The bits of a mode that say what kind of file it is."""
GONE = -1
"""The mark of what was no file when it was planned: reading it says why."""


def file_at(field: str, url: str, storage: StorageOptions, sized: bool = False) -> File:
    """Look up a file or object: what it is like only if its size is wanted, as that takes its time."""
    if not is_local(url):
        if not sized or scheme_of(url) == "pipe":
            return field, url, -1, None
        info = stat(url, storage)
        return field, url, info.size, info.version
    path = local_path(url)
    return (field, path, *(look_at(path) if sized else (-1, UNSEEN)))


def look_at(path: str | bytes) -> tuple[int, int]:
    """The size and the time of change of a file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return 0, GONE
    return (found.st_size, found.st_mtime_ns) if modes.S_ISREG(found.st_mode) else (0, GONE)


@contextlib.contextmanager
def loading(storage: StorageOptions, seen: Seen) -> Iterator[Load]:
    """Read samples that are files, one after the other; add what is seen only now of any of them."""
    opened, read, close, fstat = os.open, os.read, os.close, os.fstat

    def load(key: str, files: Where) -> Sample:
        sample: Sample = {"__key__": key}
        for field, place, size, mark in files:
            if type(mark) is not int:
                sample[field] = read_file((field, place, size, mark), storage)
                continue
            # The same as read_file does, without a call: there are many small files.
            try:
                fd = opened(place, _FLAGS)
            except (OSError, ValueError) as error:
                raise _failed(error, place) from error
            try:
                if mark == UNSEEN:
                    found = fstat(fd)
                    size, mark = seen[place] = found.st_size, found.st_mtime_ns
                    data = read(fd, size + 1)
                    if len(data) != size or found.st_mode & _KIND != modes.S_IFREG:
                        data = _rest(fd, data, place, size, mark)
                else:
                    data = read(fd, size + 1)
                    if len(data) != size or fstat(fd).st_mtime_ns != mark:
                        data = _rest(fd, data, place, size, mark)
            except OSError as error:
                raise _failed(error, place) from error
            finally:
                close(fd)
            sample[field] = data
        return sample

    yield load


def read_file(file: File, storage: StorageOptions) -> bytes:
    """Read all bytes of a field that is no local file; what has changed since it was planned is an error."""
    field, place, size, mark = file
    if isinstance(place, bytes):
        return place
    if isinstance(mark, int):
        with loading(storage, {}) as reading:
            data: bytes = reading("", (file,))[field]
            return data
    begun, chunks, length = time.monotonic(), [], 0
    with open_read(place, storage) as source:
        if (mark is not None and source.version not in (mark, None)) or size not in (-1, source.length):
            raise ObjectChanged("this object has changed since it was planned.", url=place)
        while chunk := source.read(_CHUNK):
            chunks.append(chunk)
            length += len(chunk)
            if scheme_of(place) == "pipe" and time.monotonic() - begun > storage.command_idle:
                raise Stalled(f"the command took more than {storage.command_idle:g} seconds.", url=place)
    if size not in (-1, length):
        raise ObjectChanged(f"{length} bytes arrived, {size} were expected.", url=place)
    return b"".join(chunks)


def _rest(fd: int, data: bytes, path: str, size: int, mark: int) -> bytes:
    """What one read did not give of a large file; anything else means that the file has changed."""
    if not modes.S_ISREG(os.fstat(fd).st_mode):
        raise TransferError("this is not a plain file.", url=path)
    chunks, length = [data], len(data)
    while length < size and (chunk := os.read(fd, size + 1 - length)):
        chunks.append(chunk)
        length += len(chunk)
    found = os.fstat(fd)
    if length != size or found.st_size != size or found.st_mtime_ns != mark:
        raise ObjectChanged(
            "this file has changed since it was planned.",
            url=path,
            hint="run the same command again when nobody writes to it any more.",
        )
    return b"".join(chunks)


def _failed(error: OSError | ValueError, path: str) -> TarmacError:
    if isinstance(error, TarmacError):
        return error
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound("this file was to be packed, and is not there.", url=path)
    if isinstance(error, PermissionError):
        return AccessDenied("this file may not be read.", url=path)
    reason = getattr(error, "strerror", None) or error
    return TransferError(f"this file cannot be read: {reason}.", url=path)
