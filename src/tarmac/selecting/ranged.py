"""Read a remote file at any position, so that only the columns that are needed are fetched."""

from __future__ import annotations

import io
from typing import Any

from tarmac.storage import StorageOptions, read_range, stat


class RangedFile(io.RawIOBase):
    """A file in a store, read by ranges of one version."""

    def __init__(self, url: str, storage: StorageOptions) -> None:
        self._url, self._storage = url, storage
        info = stat(url, storage)
        self.size, self._version, self._at = info.size, info.version, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        stop = self.size if size < 0 else min(self._at + size, self.size)
        if stop <= self._at:
            return b""
        data = read_range(self._url, self._at, stop, self._storage, self._version)
        self._at += len(data)
        return data
