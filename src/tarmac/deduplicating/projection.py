"""Project vectors onto few dimensions, in which no two of them are less similar than they were.

A unit vector becomes its part in the subspace of the largest variance, and the length of the rest as one more number.
By Cauchy and Schwarz the product of two such vectors is at least the cosine of the originals, and their
distance at most the distance of these. So what is not near in the projection is not near at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tarmac.embedding.parts import Vectors

DIMENSIONS = 63
"""Dimensions of the subspace. Fewer make products cheaper and let more pairs through that are not near."""


@dataclass(frozen=True)
class Projection:
    """An orthonormal basis, a column for each dimension of the subspace."""

    basis: Vectors

    @property
    def dimension(self) -> int:
        """Return the number of numbers of a projected vector."""
        return int(self.basis.shape[1]) + 1

    @classmethod
    def of(cls, sample: Vectors) -> Projection:
        """Return the subspace in which unit vectors like these have most of their length."""
        dimension = sample.shape[1]
        _, vectors = np.linalg.eigh((sample.T @ sample).astype(np.float64))
        return cls(np.ascontiguousarray(vectors[:, ::-1][:, : min(DIMENSIONS, dimension)], np.float32))

    def __call__(self, vectors: Vectors) -> Vectors:
        """Return the projections of unit vectors."""
        result = np.empty((len(vectors), self.dimension), np.float32)
        result[:, :-1] = vectors @ self.basis
        squares = np.einsum("ij,ij->i", result[:, :-1], result[:, :-1])
        result[:, -1] = np.sqrt(np.maximum(1 - squares, 0))
        return result


def unit(vectors: Vectors) -> tuple[Vectors, NDArray[np.bool_]]:
    """Return vectors with length 1, and whether they have a direction: zeros and NaN have none, and become zeros."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    valid = np.isfinite(lengths) & (lengths > 0)
    factors = np.divide(1, lengths, out=np.zeros_like(lengths), where=valid)
    finite = vectors if valid.all() else np.where(valid[:, None], vectors, np.float32(0))
    return finite * factors[:, None].astype(np.float32), valid
