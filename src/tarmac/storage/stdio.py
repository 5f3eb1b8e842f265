"""`-`: standard input as a shard, standard output as a target."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from tarmac.errors import TransferError, UnsupportedScheme, WriteError
from tarmac.storage.store import Store
from tarmac.storage.types import ObjectInfo, Source, StorageOptions, WriteOptions


class StandardStreams(Store):
    """Standard input and standard output."""

    is_stream = True

    def open_read(self, url: str, storage: StorageOptions, /) -> Source:
        return _Stdin()

    def open_write(self, url: str, storage: StorageOptions, write: WriteOptions, /) -> _Stdout:
        return _Stdout()

    def stat(self, url: str, storage: StorageOptions, /) -> ObjectInfo:
        size = os.fstat(sys.stdin.fileno()).st_size
        if not size:
            raise UnsupportedScheme("the size of standard input is unknown.", url=url)
        return ObjectInfo(size, None)


class _Stdin(Source):
    def read(self, size: int, /) -> bytes:
        try:
            return os.read(sys.stdin.fileno(), size)
        except OSError as error:
            raise TransferError(f"standard input cannot be read: {error.strerror}.", url="-") from error


class _Stdout:
    """Standard output. Bytes are written immediately: a reader detects the missing end-of-archive marker."""

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
        raise WriteError(f"standard output cannot be written: {error.strerror}.", url="-") from error
