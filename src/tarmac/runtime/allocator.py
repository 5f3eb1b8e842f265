"""Keep the memory of samples that were freed, for the samples that follow."""

from __future__ import annotations

from functools import cache

from tarmac.limits import MIB

BLOCK = 4 * MIB
"""Larger blocks are still returned to the system when they are freed. glibc adapts to blocks of up to 32 MiB."""


@cache
def keep_freed_memory() -> None:
    """Have the allocator keep some 8 MB of freed memory, instead of returning each batch of samples to the system.

    The system would have to clear those pages again for the next batch, which takes longer than reading 80 KB samples.
    The allocator of glibc adapts both of its thresholds to the largest block that was freed, so one such block is
    enough; it is never touched. Others are not affected, nor is glibc if MALLOC_TRIM_THRESHOLD_ is set.
    """
    bytes(BLOCK)
