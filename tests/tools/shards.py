"""Shards for the tests of the shard tools, and what is in shards that were made."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

import tarmac
from tarmac.jobs.engines.local import LocalEngine
from tarmac.tools.rewrite import Run

RUN = Run(LocalEngine())


def make(folder: Path, *counts: int, name: str = "in-{}.tar") -> list[str]:
    """Shards of so many samples, each with a text, a class and some JSON."""
    urls = []
    for shard, count in enumerate(counts):
        urls.append(str(folder / name.format(shard)))
        with tarmac.TarWriter(urls[-1]) as writer:
            for number in range(count):
                writer.write(sample(shard, number))
    return urls


def sample(shard: int, number: int) -> dict[str, Any]:
    """One sample, which tells where it was."""
    return {
        "__key__": f"s{shard}/{number:03d}",
        "cls": number % 5,
        "json": {"shard": shard, "width": 10 * number},
        "txt": f"text {number} of {shard} " * (number % 7 + 1),
    }


def content(*patterns: str) -> list[dict[str, Any]]:
    """All samples of all shards that match, in the order of the shards, without their URLs."""
    urls = [url for pattern in patterns for url in sorted(glob.glob(pattern))]
    found = list(tarmac.read(urls)) if urls else []
    return [{name: value for name, value in each.items() if name != "__url__"} for each in found]


def keys(*patterns: str) -> list[str]:
    """The keys of all samples of all shards that match."""
    return [each["__key__"] for each in content(*patterns)]


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a folder but ledgers."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
