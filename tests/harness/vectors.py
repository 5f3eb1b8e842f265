"""Directories of vectors, as `tarmac embed` writes them, and vectors of several kinds to fill them with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tarmac.embedding.layout import MANIFEST, Facts, PartFacts, metadata_name, vectors_name
from tarmac.jobs.outputs import sampled_digests


def unit(vectors: Any) -> Any:
    """Return vectors of length 1."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def sphere(count: int, dimension: int, seed: int = 0) -> Any:
    """Return directions without any structure."""
    return unit(np.random.default_rng(seed).normal(size=(count, dimension)))


def clusters(count: int, dimension: int, seed: int = 0, groups: int = 50, noise: float = 0.5) -> Any:
    """Return directions around some centres, which do not depend on the seed."""
    centres = np.random.default_rng(99).normal(size=(groups, dimension))
    rng = np.random.default_rng(seed)
    return unit(centres[rng.integers(0, groups, count)] + noise * rng.normal(size=(count, dimension)))


def write_embeddings(
    directory: Path,
    vectors: Any,
    *,
    kind: str = "img",
    part_rows: int = 1000,
    columns: Mapping[str, Sequence[Any]] | None = None,
    model: str = "",
    first: int = 0,
) -> Path:
    """Write vectors to a directory in parts, after those that it has; their keys are their numbers, from `first` on."""
    stored = np.asarray(vectors, np.float16)
    manifest = directory / MANIFEST
    known = Facts.from_json(manifest.read_text(), str(manifest)) if manifest.exists() else None
    parts = [PartFacts(**part) if isinstance(part, dict) else part for part in (known.parts if known else ())]
    for start in range(0, len(stored), part_rows):
        name = f"{len(parts):06d}"
        rows = stored[start : start + part_rows]
        table: dict[str, Any] = {
            "key": [f"{first + start + row:06d}" for row in range(len(rows))],
            "shard": [""] * len(rows),
        }
        table |= {key: list(values[start : start + part_rows]) for key, values in (columns or {}).items()}
        files = [directory / vectors_name(kind, name), directory / metadata_name(name)]
        for path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
        np.save(files[0], rows)
        pq.write_table(pa.table(table), files[1], row_group_size=256)
        facts = {
            str(path.relative_to(directory)): [path.stat().st_size, sampled_digests([str(path)])[str(path)]]
            for path in files
        }
        parts.append(PartFacts(name, len(rows), f"{name}.tar", facts))
    directory.mkdir(parents=True, exist_ok=True)
    manifest.write_text(Facts(tuple(parts), {kind: stored.shape[1]}, model, normalized=True).to_json())
    assert json.loads(manifest.read_text())["parts"][-1]["name"] == parts[-1].name if parts else True
    return directory
