"""Tables for the tests of select, and what it wrote."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def write(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def parts(folder: Path | str) -> list[Path]:
    return sorted(Path(folder).glob("part-*.parquet"))


def rows(folder: Path | str) -> list[dict[str, Any]]:
    return [row for path in parts(folder) for row in pq.read_table(path).to_pylist()]


def manifest(folder: Path | str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(folder) / "manifest.json").read_text())
    return content


def contents(folder: Path | str) -> dict[str, bytes]:
    """The bytes of all files that a user sees, without what depends on the inputs' names and times."""
    return {path.name: path.read_bytes() for path in parts(folder)}


def digests(folder: Path | str) -> dict[str, str]:
    """The SHA-256 of each file, for those that are too many to keep in memory."""
    result = {}
    for path in parts(folder):
        with path.open("rb") as file:
            result[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return result


def digest(*texts: str) -> str:
    """The SHA-256 of several texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def removed(folder: Path | str) -> dict[str, int]:
    """The number of rows that each filter removed; they must add up."""
    counts = manifest(folder)["rows"]
    assert counts["in"] == counts["out"] + sum(step["removed"] for step in counts["removed"])
    assert counts["out"] == len(rows(folder)) == sum(file["rows"] for file in manifest(folder)["files"])
    return {step["filter"]: step["removed"] for step in counts["removed"]}
