"""Helpers for cache tests: shards derived from their URLs, and checks of the cache directory."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

from tarmac.storage import Cache, StorageOptions

FAST = StorageOptions(backoff=0.001, max_backoff=0.005, retries=2, idle_timeout=60)


def shard_bytes(seed: object, size: int) -> bytes:
    """Return bytes that begin like a shard; the rest is random with the seed."""
    header = tarfile.TarInfo("x.bin")
    header.size = max(0, size - 512)
    return (header.tobuf(tarfile.USTAR_FORMAT) + random.Random(str(seed)).randbytes(header.size))[:size]


class Origin:
    """Shards derived from their URLs, and a log of the URLs that were opened."""

    def __init__(self, size: int = 20_000) -> None:
        self.size = size
        self.fetched: list[str] = []
        self.salt = ""

    def body(self, url: str) -> bytes:
        return shard_bytes(url + self.salt, self.size)

    def open(self, url: str) -> io.BytesIO:
        self.fetched.append(url)
        return io.BytesIO(self.body(url))


def read(cache: Cache, url: str, options: StorageOptions = FAST) -> bytes:
    with cache.open_read(url, options) as source:
        return b"".join(iter(lambda: source.read(1 << 16), b""))


def entries(cache: Cache) -> set[str]:
    return {path.name for path in Path(cache.directory).iterdir() if path.is_file()}


def total(cache: Cache) -> int:
    return sum(path.stat().st_size for path in Path(cache.directory).iterdir() if path.is_file())


def nothing_left_over(cache: Cache) -> None:
    root = Path(cache.directory)
    assert os.listdir(root / ".tarmac/parts") == []
    assert set(os.listdir(root / ".tarmac/notes")) == entries(cache)
    assert set(os.listdir(root / ".tarmac/locks")) <= {"budget"}


def nothing_left_over_but_locks(root: Path) -> None:
    assert os.listdir(root / ".tarmac/parts") == []
