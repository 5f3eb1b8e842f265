"""Directories of vectors, as tarmac embed writes them, and what brute force finds in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write(
    path: Path, vectors: Any, *, rows: int = 3000, model: str = "", kind: str = "img", **columns: Any
) -> Path:
    """Write vectors with their keys, and other columns, as parts of this number of rows."""
    stored = np.asarray(vectors, np.float16)
    columns = {"key": [f"{number:06d}" for number in range(len(stored))]} | columns
    (path / f"{kind}_emb").mkdir(parents=True)
    (path / "metadata").mkdir()
    parts = []
    for number, start in enumerate(range(0, max(len(stored), 1), rows)):
        files = f"{kind}_emb/{kind}_emb_{number:04d}.npy", f"metadata/metadata_{number:04d}.parquet"
        np.save(path / files[0], stored[start : start + rows])
        pq.write_table(
            pa.table({name: values[start : start + rows] for name, values in columns.items()}),
            path / files[1],
        )
        sizes = {name: [(path / name).stat().st_size, digest(path / name)] for name in files}
        parts.append({"name": f"{number:04d}", "rows": len(stored[start : start + rows]), "files": sizes})
    facts = {
        "format": "tarmac-embeddings-1",
        "parts": parts,
        "kinds": {kind: stored.shape[1]},
        "model": model,
    }
    (path / "embeddings.json").write_text(json.dumps(facts))
    return path


def digest(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


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
