"""Helpers for tests of `pack`: write trees of files, and read all samples of a source."""

from __future__ import annotations

import os
from pathlib import Path

from tarmac.tools.columns import Columns
from tarmac.tools.pack.sources.source import Skipped, SourceOptions, open_source


def write_tree(root: Path, files: dict[str, bytes]) -> Path:
    """Write files below a directory, and return it."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def read_all(source, order=None):
    """Return every sample of a source, in some order, as a job reads them, and the skipped files."""
    skipped = Skipped()
    items = list(source.items(skipped))
    items = items if order is None else [items[number] for number in order]
    with source.opened([location for _, _, location in items], {}) as load:
        samples = [load(key or f"{number:09d}", location) for number, (key, _, location) in enumerate(items)]
    return samples, skipped


def source(path, format=None, *, key="", fields=None, files=None, **options):
    """Open a source."""
    columns = Columns(key, fields or {}, files or {})
    return open_source(os.fspath(path), format, SourceOptions(columns, **options))
