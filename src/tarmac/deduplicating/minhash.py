"""Find pairs of texts that probably have many pieces in common: MinHash signatures, compared in bands.

Two texts agree in one number of their signatures with the probability of their Jaccard similarity s. With b bands of
r numbers, they agree in all numbers of at least one band with the probability 1 - (1 - s^r)^b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tarmac.deduplicating.shingles import Shingles

PERMUTATIONS = 128
LEAST = 0.995
"""The smallest probability with which texts at the threshold are compared."""
Signatures = NDArray[np.uint32]


@dataclass(frozen=True)
class Bands:
    """How signatures are divided."""

    bands: int
    rows: int

    @classmethod
    def of(cls, threshold: float) -> Bands:
        """Return the longest bands, which let the fewest other texts through, with which enough pairs are found."""
        for rows in range(PERMUTATIONS, 1, -1):
            choice = cls(PERMUTATIONS // rows, rows)
            if choice.probability(threshold) >= LEAST:
                return choice
        return cls(PERMUTATIONS, 1)

    def probability(self, similarity: float) -> float:
        """Return how probable it is that two texts of this similarity are compared."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)

    def hashes(self, signatures: Signatures) -> NDArray[np.uint64]:
        """Return a hash of each band of each signature, a row for each band."""
        result = np.zeros((self.bands, len(signatures)), np.uint64)
        for band in range(self.bands):
            for row in range(band * self.rows, (band + 1) * self.rows):
                mixed = (result[band] ^ signatures[:, row]) * np.uint64(0xD6E8FEB86659FD93)
                result[band] = mixed ^ (mixed >> np.uint64(32))
        return result


def signatures(shingles: Shingles) -> Signatures:
    """Return the signature of each text: the smallest piece under each permutation. Texts must have pieces."""
    rng = np.random.default_rng(1)
    factors = rng.integers(1, 1 << 63, PERMUTATIONS, np.uint64) | np.uint64(1)
    terms = rng.integers(0, 1 << 63, PERMUTATIONS, np.uint64)
    result = np.empty((len(shingles), PERMUTATIONS), np.uint32)
    values, starts = shingles.values.astype(np.uint64), shingles.offsets[:-1]
    for number in range(PERMUTATIONS):
        permuted = (values * factors[number] + terms[number]) >> np.uint64(32)
        result[:, number] = np.minimum.reduceat(permuted, starts)
    return result
