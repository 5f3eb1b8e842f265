"""Cut rows of tokens to a length."""

from __future__ import annotations

from typing import Any

import numpy as np

from tarmac.tools.mappers.records import Ragged

Array = np.ndarray[Any, Any]


def cut_to(tokens: Ragged, size: int | None, behind: int = 0) -> tuple[Ragged, Array]:
    """Return at most `size` tokens of each row, and how many were cut off; the last `behind` of a row are kept."""
    lengths = tokens.lengths
    if size is None or not (lost := np.maximum(lengths - size, 0)).any():
        return tokens, np.zeros(len(lengths), np.uint32)
    position = np.arange(len(tokens.values)) - np.repeat(tokens.offsets[:-1], lengths)
    first = size - behind  # of those that are cut off
    kept = (position < first) | (position >= np.repeat(first + lost, lengths))
    return Ragged(tokens.values[kept], tokens.offsets - np.concatenate([[0], np.cumsum(lost)])), lost.astype(
        np.uint32
    )
