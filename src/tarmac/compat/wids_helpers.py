"""Small functions and classes of the wids library that programs import from its submodules."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import io
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tarmac.compat.filecache import download
from tarmac.samples.naming import first_dot
from tarmac.storage import scheme_of
from tarmac.storage.locks import FileLock
from tarmac.tar import read_members

__all__ = [
    "MMIndexedTar",
    "TarFileReader",
    "download_and_open",
    "download_file",
    "find_index_file",
    "group_by_key",
    "keep_most_recent_files",
    "keep_while_reading",
    "splitname",
]

Download = Callable[[str, str], object]
_NO_HANDLERS: Mapping[str, Download] = {}


def splitname(fname: str) -> tuple[str, str]:
    """Split a file name into the key of its sample and the extension, with its dot."""
    named = first_dot(fname)
    if named is None:
        raise ValueError(f"{fname!r} has no extension, so it belongs to no sample")
    return named[0], f".{named[1]}"


def group_by_key(names: Iterator[str] | list[str]) -> list[list[int]]:
    """The numbers of the files of each sample; files without an extension are in none."""
    groups: list[list[int]] = []
    last = None
    for number, name in enumerate(names):
        named = first_dot(name)
        if named is None:
            continue
        if named[0] != last:
            groups.append([])
            last = named[0]
        groups[-1].append(number)
    return groups


class MMIndexedTar:
    """The files in a tar file by number or by name; of several with one name, the name means the last.

    `cleanup_callback(fname, fileno, phase)` is called with "start" when the file was opened and with "end"
    before it is closed.
    """

    def __init__(
        self,
        fname: str | IO[bytes],
        index_file: Any = None,
        verbose: bool = True,
        cleanup_callback: Callable[[Any, int, str], object] | None = None,
    ) -> None:
        del index_file, verbose
        self.fname = fname if isinstance(fname, str) else None
        self.stream: IO[bytes] = open(fname, "rb") if isinstance(fname, str) else fname  # noqa: SIM115
        self.cleanup_callback = cleanup_callback
        self._data = _mapped(self.stream)
        if cleanup_callback is not None:
            cleanup_callback(fname, self.stream.fileno(), "start")
        self.by_index = [
            (name.decode("utf-8", "surrogateescape"), offset, size)
            for name, offset, size, _ in read_members(self._data, url=self.fname, payload=False)
        ]
        self.by_name = {name: number for number, (name, _, _) in enumerate(self.by_index)}

    def names(self) -> list[str]:
        """The names of all files, in order."""
        return [name for name, _, _ in self.by_index]

    def get_at_index(self, index: int) -> tuple[str, bytes]:
        """The name and the bytes of a file."""
        name, offset, size = self.by_index[index]
        return name, self._data[offset : offset + size]

    def get_by_name(self, name: str) -> tuple[str, bytes]:
        """The name and the bytes of a file."""
        return self.get_at_index(self.by_name[name])

    def get_file(self, i: int) -> tuple[str, io.BytesIO]:
        """The name of a file, and its bytes as an open file."""
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


TarFileReader = MMIndexedTar


def find_index_file(file: str) -> str:
    """Where wids keeps a pickled index of a tar file; tarmac neither reads nor writes it."""
    return f"{file}.index"


def _mapped(stream: IO[bytes]) -> mmap.mmap | bytes:
    try:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # in memory, or empty
        stream.seek(0)
        return stream.read()


def keep_while_reading(fname: str | None, fd: int, phase: str, delay: float = 0.0) -> None:
    """Remove a file when its last reader ends: a `cleanup_callback` for `MMIndexedTar`."""
    if delay:
        raise ValueError("delay= is not possible")
    if phase not in ("start", "end"):
        raise ValueError(f"a phase is 'start' or 'end', not {phase!r}")
    if fname is None or fd < 0:
        return
    if phase == "start":
        fcntl.flock(fd, fcntl.LOCK_SH)
        return
    with contextlib.suppress(BlockingIOError, FileNotFoundError):  # others read it, or removed it already
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(fname)


def download_file(
    remote: str, local: str, handlers: Mapping[str, Download] = _NO_HANDLERS, verbose: bool = False
) -> str:
    """Copy what a URL names to a file, which appears when it is whole; return its name.

    `handlers` are functions of (URL, file name) for schemes that are to be fetched in another way.
    """
    handler = handlers.get(scheme_of(remote) or "posixpath")
    if handler is None:
        download(remote, local, verbose=verbose)
        return local
    part = f"{local}.part-{os.getpid()}"
    try:
        handler(remote, part)
        os.replace(part, local)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    return local


def download_and_open(
    remote: str,
    local: str,
    mode: str = "rb",
    handlers: Mapping[str, Download] = _NO_HANDLERS,
    verbose: bool = False,
) -> IO[Any]:
    """Open a file, which is downloaded first unless it is there; processes that ask at once wait for one."""
    lock = FileLock(Path(f"{local}.lock"))
    lock.acquire()
    try:
        if not os.path.exists(local):
            download_file(remote, local, handlers, verbose)
        return open(local, mode)
    finally:
        lock.remove()


def keep_most_recent_files(
    pattern: str, maxsize: int = 10**12, maxfiles: int = 1000, debug: bool = False
) -> None:
    """Of the files that match a pattern keep the newest, up to `maxsize` bytes and `maxfiles` in number."""
    del debug
    files = []
    for name in glob.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(name)
            files.append((found.st_mtime_ns, name, found.st_size))
    total, full = 0, False
    for number, (_, name, size) in enumerate(sorted(files, reverse=True)):
        total += size
        full = full or total > maxsize or number >= maxfiles
        if full:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
