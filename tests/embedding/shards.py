"""Shards for tests of embeddings: captions, and pictures of one colour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import tarmac

COLOURS = {"red": (250, 5, 5), "green": (5, 250, 5), "blue": (5, 5, 250)}


def picture(colour: tuple[int, int, int], width: int = 40, height: int = 32) -> bytes:
    """Return a JPEG of one colour."""
    import simplejpeg

    pixels = np.broadcast_to(np.array(colour, np.uint8), (height, width, 3))
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), 95)


def caption(number: int) -> str:
    """Return a text that no other number has, of a length that varies."""
    return f"{list(COLOURS)[number % 3]} " * (number * 7 % 5) + f"number {number}"


def write(path: Path | str, numbers: Any, **fields: Any) -> str:
    """Write samples with a caption, a picture and some JSON."""
    with tarmac.TarWriter(str(path), encoder=False) as writer:
        for number in numbers:
            values = {"similarity": number / 7, "punsafe": number % 3, "tags": ["a"], "width": -1}
            writer.write(
                {
                    "__key__": f"{number:06d}",
                    "jpg": picture(list(COLOURS.values())[number % 3]),
                    "txt": caption(number).encode(),
                    "json": json.dumps(values).encode(),
                    "cls": str(number % 5).encode(),
                }
            )
    return str(path)


def captions(folder: Path, *counts: int) -> list[str]:
    """Write a shard of captions alone for each count, and return the paths."""
    urls, first = [], 0
    for shard, count in enumerate(counts):
        urls.append(str(folder / f"in-{shard}.tar"))
        with tarmac.TarWriter(urls[-1], encoder=False) as writer:
            for number in range(first, first + count):
                writer.write({"__key__": f"{number:06d}", "txt": caption(number).encode()})
        first += count
    return urls


def written(folder: Path) -> dict[str, bytes]:
    """Return the content of all files but those of jobs, by their path."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in paths if ".tarmac" not in p.parts}
