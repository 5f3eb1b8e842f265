"""Find the pairs of projected vectors whose product is large: the pairs that may be near each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tarmac.deduplicating.cells import Borders
from tarmac.embedding.parts import Vectors
from tarmac.runtime.types import Integers

ROWS, COLUMNS = 512, 4096
"""The size of a product that fits into the cache of a core."""
SLACK = 1e-5
"""What products of single precision may be wrong by."""
Pairs = tuple[Integers, Integers]


@dataclass(frozen=True)
class Search:
    """The projected vectors, ordered by cell, and within a cell those of the source before those to compare it with."""

    vectors: Vectors
    starts: Integers
    """Where each cell begins, and at the end the number of all vectors."""
    own: Integers
    """How many vectors of each cell are of the source. The others are not compared with each other."""
    borders: Borders
    least: float
    """The smallest product that counts."""

    def from_cell(self, cell: int) -> Iterator[Pairs]:
        """Yield the pairs of vectors of a cell with each other and with the cells that they come close to."""
        begin, end = int(self.starts[cell]), int(self.starts[cell + 1])
        members, own = self.vectors[begin:end], int(self.own[cell])
        for first, second in _within(members, own, self.least):
            yield first + begin, second + begin
        for top in range(0, len(members) if len(self.starts) > 2 else 0, COLUMNS):
            some = members[top : top + COLUMNS]
            yield from self._across(some, max(own - top, 0), begin + top, cell)

    def _across(self, members: Vectors, own: int, begin: int, cell: int) -> Iterator[Pairs]:
        visits = self.borders.visits(members, cell)
        for other in np.flatnonzero(visits.any(axis=0)).tolist():
            start, stop = int(self.starts[other]), int(self.starts[other + 1])
            visitors = np.flatnonzero(visits[:, other])
            middle = int(np.searchsorted(visitors, own))
            for some, end in ((visitors[:middle], stop), (visitors[middle:], start + int(self.own[other]))):
                if len(some) and end > start:
                    for first, second in _between(members[some], self.vectors[start:end], self.least):
                        yield some[first] + begin, second + start


def _within(vectors: Vectors, own: int, least: float) -> Iterator[Pairs]:
    """Yield the near pairs of one array, each once; not those behind the first `own`."""
    for start in range(0, own, ROWS):
        rows = vectors[start : min(start + ROWS, own)]
        for first, second in _between(rows, vectors[start:], least):
            later = second > first
            yield first[later] + start, second[later] + start


def _between(rows: Vectors, columns: Vectors, least: float) -> Iterator[Pairs]:
    """Yield the near pairs of two arrays."""
    for top in range(0, len(rows), ROWS):
        some = rows[top : top + ROWS]
        for left in range(0, len(columns), COLUMNS):
            products = some @ columns[left : left + COLUMNS].T
            hits = np.flatnonzero(products.max(axis=1) >= least)
            if len(hits):
                first, second = np.nonzero(products[hits] >= least)
                yield hits[first] + top, second + left
