"""Divide vectors into cells, so that most pairs of vectors that are far from each other are never compared.

Each vector belongs to the cell of its nearest centre. Two vectors of different cells lie on the two sides of the
plane between the centres. If their distance is at most r, one of them is within r/2 of that plane. So it is enough to
compare the vectors of a cell with each other, and those within r/2 of another cell with that cell. Nothing is
missed, whatever the centres are; good ones save work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tarmac.embedding.parts import Vectors
from tarmac.runtime.types import Integers

ROUNDS = 6
PER_CENTRE = 32
"""Vectors of the sample for each centre."""
SMALLEST = 1 << 14
"""Fewer vectors than this are one cell."""
MOST = 2048
_SLACK = 1e-4


def centre_count(vectors: int) -> int:
    """Return how many cells are worth their overhead."""
    return 1 if vectors < SMALLEST else int(min(MOST, np.sqrt(vectors)))


def train(sample: Vectors, count: int) -> Vectors:
    """Return centres by a few rounds of k-means."""
    rng = np.random.default_rng(0)
    centres = sample[np.sort(rng.choice(len(sample), min(count, len(sample)), replace=False))].copy()
    for _ in range(ROUNDS):
        nearest = assign(sample, centres)
        order = np.argsort(nearest, kind="stable")
        sizes = np.bincount(nearest, minlength=len(centres))
        filled = np.flatnonzero(sizes)
        starts = (np.cumsum(sizes) - sizes)[filled]
        centres[filled] = np.add.reduceat(sample[order], starts, axis=0) / sizes[filled][:, None]
    return centres


def assign(vectors: Vectors, centres: Vectors, block: int = 1 << 12) -> Integers:
    """Return the number of the nearest centre of each vector."""
    lengths = np.einsum("ij,ij->i", centres, centres) / 2
    nearest = np.empty(len(vectors), np.int64)
    for start in range(0, len(vectors), block):
        nearest[start : start + block] = np.argmax(vectors[start : start + block] @ centres.T - lengths, 1)
    return nearest


@dataclass(frozen=True)
class Borders:
    """The planes between the cell of a centre and all others."""

    centres: Vectors
    distance: float
    """The largest distance of two vectors that are compared."""

    def visits(self, vectors: Vectors, cell: int) -> NDArray[np.bool_]:
        """Return for each vector of a cell, and each cell, whether the vector must be compared with that cell."""
        return self._depth(vectors, cell) <= self._reach(cell)

    def _depth(self, vectors: Vectors, cell: int) -> Vectors:
        """Return the squared distance to each centre minus that to the own one."""
        lengths = np.einsum("ij,ij->i", self.centres, self.centres)
        squares = lengths - 2 * (vectors @ self.centres.T)
        return squares - squares[:, cell : cell + 1]  # type: ignore[no-any-return]

    def _reach(self, cell: int) -> Vectors:
        """Return the largest such difference of vectors within half of `distance` of the planes."""
        between = np.linalg.norm(self.centres - self.centres[cell], axis=1)
        reach = self.distance * between + _SLACK
        reach[cell] = -1  # the own cell is compared by itself
        return reach  # type: ignore[no-any-return]
