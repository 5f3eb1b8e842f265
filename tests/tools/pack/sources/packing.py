"""What the tests of sources share."""

from __future__ import annotations

import os
from pathlib import Path

from tarmac.tools.pack.sources import Skipped


def grow(root: Path, files: dict[str, bytes]) -> Path:
    """Make a tree of files."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def read_all(source, order=None):
    """Every sample of a source, in an order, as a job reads them; and what was left out."""
    skipped = Skipped()
    items = list(source.items(skipped))
    items = items if order is None else [items[number] for number in order]
    with source.opened([where for _, _, where in items], {}) as load:
        samples = [load(key or f"{number:09d}", where) for number, (key, _, where) in enumerate(items)]
    return samples, skipped


def near(path):
    """A file that is near already."""
    from tarmac.tools.pack.sources.near import bring_near

    return bring_near(os.fspath(path), "/nowhere")
