"""A file without a name that holds fetched bytes until they are used, up to a limit.

It has no name, so nothing is left behind, however the process ends. Worker processes read it through its descriptor.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import tempfile
import weakref
from typing import Any

from tarmac.storage.local import read_at


class Spool:
    """Extents of one temporary file, or of an open descriptor to it. Space is taken where it first fits."""

    def __init__(self, limit: int, fd: int | None = None, *, directory: str | None = None) -> None:
        self.limit = limit
        self._fd = _unnamed_file(directory) if fd is None else fd
        weakref.finalize(self, os.close, self._fd)  # which removes the file
        self._free: list[tuple[int, int]] = [(0, limit)]  # begin and end, in order
        self._sizes: dict[int, int] = {}

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._fd

    def allocate(self, size: int) -> int | None:
        """Reserve an extent and return its offset, or None if there is no room."""
        for number, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                self._free[number : number + 1] = [(begin + size, end)] if end - begin > size else []
                self._sizes[begin] = size
                return begin
        return None

    def free(self, offset: int) -> None:
        """Release an extent; it merges with free neighbours."""
        begin, end = offset, offset + self._sizes.pop(offset)
        number = bisect.bisect(self._free, (begin, end))
        if number < len(self._free) and self._free[number][0] == end:
            end = self._free.pop(number)[1]
        if number and self._free[number - 1][1] == begin:
            number -= 1
            begin = self._free.pop(number)[0]
        self._free.insert(number, (begin, end))

    def write(self, offset: int, data: Any) -> None:
        """Write a buffer to an extent."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, offset)
            view, offset = view[written:], offset + written

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of an extent."""
        return read_at(self._fd, offset, size, "temporary file")


def _unnamed_file(directory: str | None) -> int:
    directory = directory or tempfile.gettempdir()
    with contextlib.suppress(OSError, AttributeError):  # not all file systems can create files without a name
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fd, name = tempfile.mkstemp(prefix="tarmac-", dir=directory)
    os.unlink(name)
    return fd
