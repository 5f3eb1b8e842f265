"""Write shards for tests of the verbs, and read what verbs wrote."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

import tarmac


def make(folder: Path, *counts: int, name: str = "in-{}.tar") -> list[str]:
    """Write a shard for each count, whose samples have a text, a class and some JSON; return the paths."""
    urls = []
    for shard, count in enumerate(counts):
        urls.append(str(folder / name.format(shard)))
        with tarmac.TarWriter(urls[-1]) as writer:
            for number in range(count):
                writer.write(sample(shard, number))
    return urls


def sample(shard: int, number: int) -> dict[str, Any]:
    """Return a sample that names its shard and number."""
    return {
        "__key__": f"s{shard}/{number:03d}",
        "cls": number % 5,
        "json": {"shard": shard, "width": 10 * number},
        "txt": f"text {number} of {shard} " * (number % 7 + 1),
    }


def write(path: Path | str, samples: Any) -> str:
    """Write pairs of a key and fields of bytes to a shard, and return its path."""
    with tarmac.TarWriter(str(path), encoder=False) as writer:
        for key, fields in samples:
            writer.write({"__key__": key, **fields})
    return str(path)


def content(*patterns: str) -> list[dict[str, Any]]:
    """Return all samples of the matching shards, in the order of their names, without their URLs."""
    urls = [url for pattern in patterns for url in sorted(glob.glob(pattern))]
    samples = list(tarmac.read(urls)) if urls else []
    return [{name: value for name, value in each.items() if name != "__url__"} for each in samples]


def keys(*patterns: str) -> list[str]:
    """Return the keys of all samples of the matching shards."""
    return [each["__key__"] for each in content(*patterns)]


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files of a folder; ledgers are in a folder inside."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
