"""Keep thousands of local files readable without a descriptor for each.

`mmap.mmap` holds a descriptor for as long as the map exists, and processes may have few of them. Here a file is
mapped and its descriptor closed. Large reads need a descriptor again, because only they release the GIL while
the disk works; a pool keeps as many as the limit of the process allows.

A lock on the descriptor stays as long as the map on Linux, where both belong to the open file, so entries of a cache
that are in use are not evicted.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref
from functools import cache
from typing import Any

from tarmac.errors import TarmacError
from tarmac.runtime.allocator import keep_freed_memory
from tarmac.storage.local import LocalSource, local_path, read_at
from tarmac.storage.locks import forget_in_children
from tarmac.storage.types import Source

MAPS_KEEP_LOCKS = sys.platform == "linux"
"""Whether a lock on a descriptor outlives it if the file is mapped."""
_FAILED = ctypes.c_void_p(-1).value
_MAPS = 65530
"""Maps that Linux allows a process by default."""


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    integers = ctypes.c_int, ctypes.c_int, ctypes.c_int
    libc.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, *integers, ctypes.c_long
    libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
    libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return libc


def map_file(fd: int, size: int) -> Any:
    """Return the content of a file as an array of bytes, or None if it cannot be mapped.

    Its slices are `bytes`. The map is removed with the last reference to the array; the descriptor may be
    closed at once.
    """
    if not size:
        return None
    libc = _libc()
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == _FAILED:
        return None  # the address space or the number of maps is limited
    content = (ctypes.c_char * size).from_address(address)
    weakref.finalize(content, libc.munmap, address, size)
    return content


def release_pages(address: int, size: int) -> None:
    """Return the pages of a part of a map to the system, which would count them as memory of this process.

    They are mapped again when they are read.
    """
    begin = address - address % mmap.PAGESIZE
    _libc().madvise(begin, address + size - begin, mmap.MADV_DONTNEED)


def max_maps() -> int:
    """Return how many maps this process may have."""
    try:
        with open("/proc/sys/vm/max_map_count", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _MAPS


def max_descriptors() -> int:
    """Return how many descriptors this process may have."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


class MappedFile(Source):
    """A local file that holds a map, and a descriptor only while there are enough."""

    descriptor: _Descriptor | None = None
    """Set and removed by the pool."""

    def __init__(self, source: LocalSource) -> None:
        """Map an open file, which may be closed then."""
        keep_freed_memory()
        self._source, self._url, self._path = source, source.url, local_path(source.url)
        self.length, self.version = source.length, source.version
        self._status = os.fstat(source.fileno())
        self._content = map_file(source.fileno(), source.length or 0)

    def content(self) -> Any:
        return self._content

    def blame(self, error: TarmacError) -> None:
        self._source.blame(error)

    def read_at(self, start: int, size: int) -> bytes:
        """Return up to `size` bytes from `start`; fewer only at the end of the file."""
        descriptor = self.descriptor
        if descriptor is None:
            descriptor = _pool.open(self)
        if descriptor is not None:
            return read_at(descriptor, start, size, self._url)
        data: bytes = self._content[start : start + size]  # still the file that was opened
        return data

    def reopen(self) -> _Descriptor | None:
        """Open the file again; return None if it was removed or replaced, unless it is not mapped."""
        try:
            descriptor = _Descriptor(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
            if os.path.samestat(os.fstat(descriptor), self._status):
                return descriptor
        except OSError:
            if self._content is None:
                raise
        return None

    def close(self) -> None:
        _pool.close(self)


def map_local(url: str) -> MappedFile:
    """Open and map a local file."""
    with LocalSource(url) as source:
        return MappedFile(source)


def map_cached(source: LocalSource) -> LocalSource | MappedFile:
    """Map an entry of a cache and close its descriptor, unless the lock against eviction would be lost."""
    mapped = MappedFile(source)
    if not MAPS_KEEP_LOCKS or mapped.content() is None:
        return source
    source.close()
    return mapped


class _Descriptor(int):
    """An open file, closed with the last reference: a thread may still read while the pool drops it."""

    def __del__(self) -> None:
        os.close(self)


class _Pool:
    """The files that have a descriptor; the first of them loses it when there are too many."""

    def __init__(self) -> None:
        self._files: weakref.WeakValueDictionary[int, MappedFile] = weakref.WeakValueDictionary()
        self.forget()
        forget_in_children(self)

    def forget(self) -> None:
        """Replace the lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()

    def open(self, file: MappedFile) -> _Descriptor | None:
        descriptor = file.reopen()
        if descriptor is not None:
            with self._lock:
                self._files[id(file)], file.descriptor = file, descriptor
                full = len(self._files) > max(max_descriptors() // 4, 1)
                first = self._files.pop(next(self._files.keys()), None) if full else None
            if first is not None:
                first.descriptor = None
        return descriptor

    def close(self, file: MappedFile) -> None:
        with self._lock:
            self._files.pop(id(file), None)
        file.descriptor = None


_pool = _Pool()
