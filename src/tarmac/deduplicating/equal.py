"""Find what is equal by its hash."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tarmac.runtime.types import Integers


def equal_pairs(hashes: NDArray[np.uint64]) -> tuple[Integers, Integers]:
    """Return for each hash that occurred before its position, and that of the first occurrence; first, second."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    begins = np.ones(len(order), bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    firsts = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    again = ~begins
    return firsts[again], order[again]
