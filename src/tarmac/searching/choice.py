"""Choose the kind of an index from the number of vectors and the memory that it may take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tarmac.errors import UsageError
from tarmac.limits import MIB

Kind: TypeAlias = Literal["flat", "hnsw", "ivf", "rabitq"]
FLAT, GRAPH = 10_000, 100_000
"""Number of vectors up to which all of them are compared, and up to which a graph is built."""
LINKS = 32
"""Neighbours of a vector in the graph; twice as many in its lowest layer."""
MAX_LISTS = 1 << 16
POINTS = 39
"""Vectors that a list has on average, at least; with fewer, centroids mean nothing."""
BLOCK = 32
"""Codes that are compared at once. The last block of a list is partly empty."""
PART_BYTES, PART_ROWS = 64 * MIB, 1 << 16
"""Most bytes and rows that a unit encodes."""


@dataclass(frozen=True)
class Choice:
    """A kind of index and its size."""

    kind: Kind
    vectors: int
    dimension: int
    lists: int = 0
    bits: int = 0
    """Bits of a number of a vector in its code, of `rabitq`."""

    @property
    def name(self) -> str:
        """The name of files that belong to it."""
        return self.kind + (f"{self.bits}" if self.bits else "")

    @property
    def text(self) -> str:
        """What it is, in words."""
        return {
            "flat": "all vectors",
            "hnsw": f"graph with {LINKS} links, 16-bit floats",
            "ivf": f"{self.lists} lists, 16-bit floats",
            "rabitq": f"{self.lists} lists, codes of {self.bits} bit",
        }[self.kind]

    @property
    def reranks(self) -> bool:
        """Whether scores of the index are estimates."""
        return self.kind == "rabitq"

    @property
    def code_bytes(self) -> int:
        """The size of the code of a vector."""
        if self.kind != "rabitq":
            return self.dimension * (4 if self.kind == "flat" else 2)
        planes = -(-self.dimension // 8)
        return planes + 8 if self.bits == 1 else planes + -(-self.dimension * (self.bits - 1) // 8) + 20

    @property
    def memory(self) -> int:
        """About how many bytes the index takes."""
        codes = self.vectors * self.code_bytes
        if self.kind == "flat":
            return codes
        if self.kind == "hnsw":
            return codes + self.vectors * (4 * (2 * LINKS + LINKS // 8) + 20) + self.dimension * 8
        lists = self.lists * (4 * self.dimension + 64) + 8 * self.vectors
        if self.kind == "ivf":
            return codes + lists
        return codes + lists + self.lists * (BLOCK // 2) * (self.code_bytes + 8) + 4 * self.dimension**2

    @property
    def part_rows(self) -> int:
        """The number of vectors that a unit encodes."""
        return max(min(PART_ROWS, PART_BYTES // self.code_bytes), 1024)


def choices(vectors: int, dimension: int, max_memory: int) -> Iterator[Choice]:
    """Yield the kinds of index that fit, the best first; raise UsageError if none does."""
    fits = [choice for choice in all_choices(vectors, dimension) if choice.memory <= max_memory]
    if not fits:
        least = min(choice.memory for choice in all_choices(vectors, dimension))
        what = f"{vectors} vectors of {dimension} numbers need at least {as_size(least)}, got {max_memory} bytes."
        raise UsageError(what, field="max_memory", hint=f"`max_memory` {as_size(least)}.")
    yield from fits


def all_choices(vectors: int, dimension: int) -> Iterator[Choice]:
    """Yield all kinds for this number of vectors, the best first."""
    if vectors <= FLAT:
        yield Choice("flat", vectors, dimension)
    if vectors <= GRAPH:
        yield Choice("hnsw", vectors, dimension)
    lists = number_of_lists(vectors)
    yield Choice("ivf", vectors, dimension, lists)
    for bits in (1, 4):
        yield Choice("rabitq", vectors, dimension, lists, bits)


def number_of_lists(vectors: int) -> int:
    """Return a power of two near four times the root of the number: as many centroids are compared as codes."""
    most = max(min(4 * math.sqrt(vectors), vectors / POINTS, MAX_LISTS), 1)
    return 1 << round(math.log2(most))


def sufficient(vectors: int, dimension: int) -> int:
    """Return the memory with which any recall can be had: that of the smallest kind without estimates."""
    return min(choice.memory for choice in all_choices(vectors, dimension) if not choice.reranks)


def as_size(size: int) -> str:
    """Return a size as flags take it, rounded up."""
    return f"{-(-size // 10**6)}MB" if size >= 10**7 else f"{-(-size // 1000)}KB"
