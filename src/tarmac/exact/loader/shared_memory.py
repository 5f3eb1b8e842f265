"""Shared memory without names: nothing is left behind however a process ends.

A worker makes a segment (memory that only descriptors refer to), fills it with the arrays of a batch and
passes its descriptor to the parent once; from then on both have it mapped and batches cross without being
copied again. The parent says when nobody uses a segment any more, and the worker fills it anew.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tarmac.errors import LoaderError

__all__ = ["make_segment", "map_segment", "needed", "Segment", "watched"]

ALIGNMENT = 64
"""Arrays begin at multiples of this, as vector instructions like it."""


def make_segment(size: int) -> int:
    """Return a descriptor for so many bytes of memory that has no name and no limit of its own."""
    fd = -1
    try:
        if hasattr(os, "memfd_create"):  # which needs no room in /dev/shm
            fd = os.memfd_create("tarmac", os.MFD_CLOEXEC)
            os.ftruncate(fd, size)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
            # The system ends a process that writes to a mapped file for which the disk has no room.
            file_room = getattr(os, "posix_fallocate", lambda fd, _start, size: os.ftruncate(fd, size))
            file_room(fd, 0, max(size, 1))
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise LoaderError(
            f"there are no {size} bytes of shared memory for a batch: {error.strerror}.",
            hint="smaller batches, fewer processes, or threads instead of them.",
        ) from error
    return fd


def map_segment(fd: int) -> mmap.mmap:
    """Map a segment and close the descriptor, which is not needed any more."""
    try:
        return mmap.mmap(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


class Segment:
    """A piece of shared memory in which a worker puts the arrays of one batch."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.fd = make_segment(size)
        self._bytes = np.frombuffer(mmap.mmap(self.fd, size), np.uint8)
        self._used = 0

    def forget_descriptor(self) -> None:
        """Close the descriptor: the parent has its own, and the memory is mapped."""
        os.close(self.fd)
        self.fd = -1

    def clear(self) -> None:
        """Begin anew: nobody uses what was in it."""
        self._used = 0

    def place(self, data: memoryview) -> tuple[int, int]:
        """Copy bytes into the segment; return from where to where they are."""
        start, end = self._used, self._used + data.nbytes
        self._bytes[start:end] = np.frombuffer(data, np.uint8)
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        return start, end


def watched(memory: mmap.mmap, on_end: Callable[[], None]) -> NDArray[np.uint8]:
    """The bytes of a segment as an array; `on_end` is called when no array made from it is left."""
    whole: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
    weakref.finalize(whole, on_end).atexit = False
    return whole


def needed(buffers: list[Any]) -> int:
    """How large a segment must be to hold all these."""
    return sum(-(-buffer.raw().nbytes // ALIGNMENT) * ALIGNMENT for buffer in buffers)
