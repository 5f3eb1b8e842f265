"""Anonymous shared memory: nothing is left behind, however a process exits.

A worker creates a segment (memory that only file descriptors refer to), fills it with the arrays of a batch
and sends its descriptor to the parent once. From then on both have it mapped, and batches are not copied
again. The parent reports when a segment is no longer used, and the worker reuses it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tarmac.errors import LoaderError

ALIGNMENT = 64
"""Alignment of arrays, for vector instructions."""


def create_segment(size: int) -> int:
    """Return a descriptor of `size` bytes of anonymous shared memory."""
    fd = -1
    try:
        if hasattr(os, "memfd_create"):  # not limited by the size of /dev/shm
            fd = os.memfd_create("tarmac", os.MFD_CLOEXEC)
            os.ftruncate(fd, size)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
            # A process that writes to a mapped file on a full disk is killed, so allocate now.
            allocate = getattr(os, "posix_fallocate", lambda fd, _start, size: os.ftruncate(fd, size))
            allocate(fd, 0, max(size, 1))
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise LoaderError(
            f"cannot allocate {size} bytes of shared memory for a batch: {error.strerror}.",
            hint="smaller batches, fewer processes, or threads instead of processes.",
        ) from error
    return fd


def map_segment(fd: int) -> mmap.mmap:
    """Map a segment and close its descriptor."""
    try:
        return mmap.mmap(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


class Segment:
    """Shared memory for the arrays of one batch, as the worker sees it."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.fd = create_segment(size)
        self._bytes = np.frombuffer(mmap.mmap(self.fd, size), np.uint8)

    def close_descriptor(self) -> None:
        """Close the descriptor; the parent has its own, and the memory stays mapped."""
        os.close(self.fd)
        self.fd = -1

    def write(self, buffers: list[memoryview]) -> list[tuple[int, int]]:
        """Copy buffers into the segment and return the begin and the end of each."""
        ranges, end = [], 0
        for buffer in buffers:
            start = _aligned(end)
            end = start + buffer.nbytes
            self._bytes[start:end] = np.frombuffer(buffer, np.uint8)
            ranges.append((start, end))
        return ranges


def watched(memory: mmap.mmap, on_release: Callable[[], None]) -> NDArray[np.uint8]:
    """Return the bytes of a segment as an array; `on_release` is called when the last view of it is gone."""
    whole: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
    weakref.finalize(whole, on_release).atexit = False
    return whole


def required_size(buffers: list[memoryview]) -> int:
    """Return the size of a segment that holds all buffers."""
    return sum(_aligned(buffer.nbytes) for buffer in buffers)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
