"""`-`: standard input as a shard, standard output as a target."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from tarmac.errors import TransferError, UnsupportedScheme, WriteError
from tarmac.storage.types import ObjectInfo, Source, StorageOptions, WriteOptions

__all__ = ["open_read", "open_write", "read_range", "stat"]


class _Stdin(Source):
    def read(self, size: int, /) -> bytes:
        try:
            return os.read(sys.stdin.fileno(), size)
        except OSError as error:
            raise TransferError(f"standard input cannot be read: {error.strerror}.", url="-") from error


class _Stdout:
    """Bytes go out as they come: there is no name to protect, the reader sees a missing end mark."""

    def write(self, data: bytes, /) -> None:
        with _writing():
            sys.stdout.buffer.write(data)

    def commit(self) -> None:
        with _writing():
            sys.stdout.buffer.flush()

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            sys.stdout.buffer.flush()


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError(f"standard output takes no more: {error.strerror}.", url="-") from error


def open_read(_url: str, _options: StorageOptions) -> Source:
    """Read standard input."""
    return _Stdin()


def open_write(_url: str, _options: StorageOptions, _write: WriteOptions) -> _Stdout:
    """Write standard output."""
    return _Stdout()


def stat(url: str, _options: StorageOptions) -> ObjectInfo:
    """Streams that are files have a size."""
    found = os.fstat(sys.stdin.fileno())
    if found.st_size == 0:
        raise UnsupportedScheme("standard input has no known size.", url=url)
    return ObjectInfo(found.st_size, None)


def read_range(
    url: str, _start: int, _stop: int, _options: StorageOptions, _version: str | None = None
) -> bytes:
    """Standard input has no random access."""
    raise UnsupportedScheme("standard input can only be read from front to back.", url=url)
