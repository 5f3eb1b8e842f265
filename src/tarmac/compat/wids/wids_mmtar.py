"""`wids.wids_mmtar`: access the files of a mapped tar file by number."""

from __future__ import annotations

import contextlib
import fcntl
import io
import mmap
import os
from collections.abc import Callable, Iterator
from typing import IO, Any

from tarmac.tar import read_members


class MMIndexedTar:
    """The files of a tar file by number or by name. If a name occurs several times, it refers to the last file.

    `cleanup_callback(fname, fileno, phase)` is called with the phase "start" after the file was opened, and with
    "end" before it is closed.
    """

    def __init__(
        self,
        fname: str | IO[bytes],
        index_file: Any = None,
        verbose: bool = True,
        cleanup_callback: Callable[[Any, int, str], object] | None = None,
    ) -> None:
        del index_file, verbose
        self.fname: str | None = fname if isinstance(fname, str) else None
        self.stream: IO[bytes] = open(fname, "rb") if isinstance(fname, str) else fname  # noqa: SIM115
        self.cleanup_callback = cleanup_callback
        self._data: mmap.mmap | bytes
        try:
            self._data = mmap.mmap(self.stream.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # in memory, or empty
            self.stream.seek(0)
            self._data = self.stream.read()
        if cleanup_callback is not None:
            cleanup_callback(fname, self.stream.fileno(), "start")
        self.by_index: list[tuple[str, int, int]] = [
            (name.decode("utf-8", "surrogateescape"), offset, size)
            for name, offset, size, _ in read_members(self._data, url=self.fname, payload=False)
        ]
        self.by_name: dict[str, int] = {name: number for number, (name, _, _) in enumerate(self.by_index)}

    def names(self) -> list[str]:
        """Return the names of all files, in order."""
        return [name for name, _, _ in self.by_index]

    def get_at_index(self, index: int) -> tuple[str, bytes]:
        """Return the name and content of a file."""
        name, offset, size = self.by_index[index]
        return name, self._data[offset : offset + size]

    def get_by_name(self, name: str) -> tuple[str, bytes]:
        """Return the name and content of a file."""
        return self.get_at_index(self.by_name[name])

    def get_file(self, i: int) -> tuple[str, io.BytesIO]:
        """Return the name of a file, and its content as an open file."""
        name, data = self.get_at_index(i)
        return name, io.BytesIO(data)

    def __getitem__(self, key: int | str) -> tuple[str, bytes]:
        return self.get_at_index(key) if isinstance(key, int) else self.get_by_name(key)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return (self.get_at_index(number) for number in range(len(self)))

    def __len__(self) -> int:
        return len(self.by_index)

    def close(self, dispose: bool = False) -> None:
        """Close the file."""
        del dispose
        if self.stream.closed:
            return
        if self.cleanup_callback is not None:
            self.cleanup_callback(self.fname, self.stream.fileno(), "end")
        if isinstance(self._data, mmap.mmap):
            self._data.close()
        self.stream.close()


def keep_while_reading(fname: str | None, fd: int, phase: str, delay: float = 0.0) -> None:
    """Remove a file when its last reader closes it; a `cleanup_callback` for `MMIndexedTar`."""
    if delay:
        raise ValueError("`delay` is not supported")
    if phase not in ("start", "end"):
        raise ValueError(f"`phase` must be 'start' or 'end', got {phase!r}")
    if fname is None or fd < 0:
        return
    if phase == "start":
        fcntl.flock(fd, fcntl.LOCK_SH)
        return
    with contextlib.suppress(BlockingIOError, FileNotFoundError):  # another reader has it open, or removed it
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(fname)
