"""Some samples at a time, for what takes long to begin: a condition, or handing over to another process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tarmac.samples.grouping import Sample

__all__ = ["chunks"]


def chunks(samples: Iterable[Sample], most: int, most_bytes: int) -> Iterator[list[Sample]]:
    """Not too many samples together, and of large ones few: a handful ends with the one that is too much."""
    some: list[Sample] = []
    size = 0
    for sample in samples:
        some.append(sample)
        size += sum(len(value) for name, value in sample.items() if name[:2] != "__")
        if len(some) >= most or size >= most_bytes:
            yield some
            some, size = [], 0
    if some:
        yield some
