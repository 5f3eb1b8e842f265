"""Directories of vectors, as tarmac embed writes them, and what brute force finds in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from harness.vectors import write_embeddings


def write(
    path: Path, vectors: Any, *, rows: int = 3000, model: str = "", kind: str = "img", **columns: Any
) -> Path:
    """Write vectors with their keys, and other columns, as parts of this number of rows."""
    return write_embeddings(path, vectors, kind=kind, part_rows=rows, model=model, columns=columns)


def clusters(count: int, dimension: int, seed: int = 0, planted: float = 0.1) -> np.ndarray:
    """Return unit vectors around centres, of decreasing variance, and near duplicates of some of them."""
    rng = np.random.default_rng(seed)
    scale = 1 / np.sqrt(np.arange(1, dimension + 1))
    centres = rng.standard_normal((max(count // 100, 2), dimension)) * scale
    vectors = centres[rng.integers(len(centres), size=count)] + 0.8 * scale * rng.standard_normal(
        (count, dimension)
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sources, targets = np.split(rng.choice(count, 2 * int(planted * count), replace=False), 2)
    noise = rng.standard_normal((len(sources), dimension))
    noise -= (noise * vectors[sources]).sum(1, keepdims=True) * vectors[sources]
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    cosine = rng.uniform(0.9, 1, len(sources))[:, None]
    vectors[targets] = cosine * vectors[sources] + np.sqrt(1 - cosine**2) * noise
    return vectors.astype(np.float16)


def brute_force(stored: Any, threshold: float, own: int | None = None) -> dict[tuple[int, int], float]:
    """Return all pairs with at least this cosine, the smaller number first, and the cosine."""
    vectors = np.asarray(stored, np.float64)
    lengths = np.linalg.norm(vectors, axis=1)
    vectors = vectors / np.where(lengths > 0, lengths, 1)[:, None]
    pairs = {}
    for start in range(0, len(vectors) if own is None else own, 1000):
        products = (
            vectors[start : min(start + 1000, len(vectors) if own is None else own)] @ vectors[start:].T
        )
        for one, other in zip(*np.nonzero(products >= threshold), strict=True):
            if other > one:
                pairs[int(one) + start, int(other) + start] = float(products[one, other])
    return pairs
