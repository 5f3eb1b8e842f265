"""Read the fields of samples from files, objects and commands."""

from __future__ import annotations

import contextlib
import os
import stat as modes
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from tarmac.errors import AccessDenied, NotFound, ObjectChanged, Stalled, TarmacError, TransferError
from tarmac.samples.grouping import Sample
from tarmac.storage import StorageOptions, is_local, open_read, scheme_of, stat
from tarmac.storage.local import local_path
from tarmac.tools.pack.sources.source import (
    UNKNOWN,
    File,
    FileStats,
    Load,
    Location,
    Source,
    SourceOptions,
)

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Opening a named pipe must not block; it is an error anyway."""
_CHUNK = 1 << 20
NOT_A_FILE = -1
"""The version of anything but a regular file when planning: reading it raises."""


def locate_file(field: str, url: str, storage: StorageOptions, needs_size: bool = False) -> File:
    """Return a file or object as planned; its size only if it is needed, since looking takes time."""
    if not is_local(url):
        if not needs_size or scheme_of(url) == "pipe":
            return field, url, -1, None
        info = stat(url, storage)
        return field, url, info.size, info.version
    path = local_path(url)
    return (field, path, *(file_stat(path) if needs_size else (-1, UNKNOWN)))


def file_stat(path: str | bytes) -> tuple[int, int]:
    """Return the size and the modification time of a file."""
    size, modified, *_ = full_stat(path)
    return size, modified


def full_stat(path: str | bytes) -> tuple[int, ...]:
    """Return the size, modification time, change time and inode of a file."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return 0, NOT_A_FILE
    if not modes.S_ISREG(info.st_mode):
        return 0, NOT_A_FILE
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


@dataclass
class FileSource(Source):
    """A source whose locations are files."""

    url: str
    options: SourceOptions
    unique_keys = True

    def opened(self, locations: Sequence[Location], stats: FileStats) -> AbstractContextManager[Load]:
        return file_loader(replace(self.options.storage, command_timeout=self.options.timeout), stats)

    def files(self, location: Location) -> tuple[File, ...]:
        return location

    def field_names(self, location: Location) -> set[str] | None:
        return {file[0].lower() for file in location}


@contextlib.contextmanager
def file_loader(storage: StorageOptions, stats: FileStats) -> Iterator[Load]:
    """Yield a function that reads samples from their files, and records in `stats` what was unknown."""
    opened, read, close, fstat = os.open, os.read, os.close, os.fstat

    def load(key: str, files: Location) -> Sample:
        sample: Sample = {"__key__": key}
        for field, location, size, version in files:
            if type(version) is not int:
                is_content = isinstance(location, bytes)
                sample[field] = location if is_content else read_object(location, size, version, storage)
                continue
            # Inlined for speed: there are many small files.
            try:
                fd = opened(location, _FLAGS)
            except (OSError, ValueError) as error:
                raise _failed(error, location) from error
            try:
                info = fstat(fd)
                stats[location] = info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino
                if version == UNKNOWN:
                    size, version = info.st_size, info.st_mtime_ns
                    data = read(fd, size + 1)
                    if len(data) != size or not modes.S_ISREG(info.st_mode):
                        data = _read_rest(fd, data, location, size, version)
                else:
                    data = read(fd, size + 1)
                    if len(data) != size or fstat(fd).st_mtime_ns != version:
                        data = _read_rest(fd, data, location, size, version)
            except OSError as error:
                raise _failed(error, location) from error
            finally:
                close(fd)
            sample[field] = data
        return sample

    yield load


def read_object(location: str, size: int, version: str | None, storage: StorageOptions) -> bytes:
    """Return the bytes of an object or a command; raise if they changed after they were planned."""
    started, chunks, length = time.monotonic(), [], 0
    with open_read(location, storage) as source:
        if (version is not None and source.version not in (version, None)) or size not in (-1, source.length):
            raise ObjectChanged("the object changed after it was planned.", url=location)
        while chunk := source.read(_CHUNK):
            chunks.append(chunk)
            length += len(chunk)
            if scheme_of(location) == "pipe" and time.monotonic() - started > storage.command_timeout:
                raise Stalled(
                    f"the command took more than {storage.command_timeout:g} seconds.", url=location
                )
    if size not in (-1, length):
        raise ObjectChanged(f"expected {size} bytes, got {length}.", url=location)
    return b"".join(chunks)


def _read_rest(fd: int, data: bytes, path: str, size: int, version: int) -> bytes:
    """Read on after a short read of a large file; raise if the file is not the planned one."""
    if not modes.S_ISREG(os.fstat(fd).st_mode):
        raise TransferError("this is not a regular file.", url=path)
    chunks, length = [data], len(data)
    while length < size and (chunk := os.read(fd, size + 1 - length)):
        chunks.append(chunk)
        length += len(chunk)
    info = os.fstat(fd)
    if length != size or info.st_size != size or info.st_mtime_ns != version:
        raise ObjectChanged(
            "the file changed during the job.",
            url=path,
            hint="run the same command again when nothing writes to it.",
        )
    return b"".join(chunks)


def _failed(error: OSError | ValueError, path: str) -> TarmacError:
    if isinstance(error, TarmacError):
        return error
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound("the file to pack does not exist.", url=path)
    if isinstance(error, PermissionError):
        return AccessDenied("permission denied.", url=path)
    reason = getattr(error, "strerror", None) or error
    return TransferError(f"the file cannot be read: {reason}.", url=path)
