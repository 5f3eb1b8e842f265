"""Install compat for one test; shard lists of local and remote files."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

import tarmac.compat
from harness.shards import plain
from tarmac.errors import ShortRead
from tarmac.storage import FileStore, register_scheme, schemes

COUNTS = [3, 2, 4]


def shard(number, count):
    files = [
        (f"{number}/{i}.{field}", b"%d%d" % (number, i)) for i in range(count) for field in ("cls", "txt")
    ]
    return plain(files)


@pytest.fixture
def listed(tmp_path):
    """Three shards of 3, 2 and 4 samples, as a list."""
    found = []
    for number, count in enumerate(COUNTS):
        path = tmp_path / f"x-{number}.tar"
        path.write_bytes(shard(number, count))
        found.append({"url": str(path), "nsamples": count})
    return found


class Far:
    """Files of a directory as far://host/…; `fetched` says which, `broken` how many fail half-way."""

    def __init__(self, place: Path) -> None:
        self.place, self.fetched, self.broken = place, [], 0

    def open(self, url):
        self.fetched.append(url)
        data = (self.place / url.rpartition("/")[2]).read_bytes()
        if not self.broken:
            return io.BytesIO(data)
        self.broken -= 1
        return Broken(data[: len(data) // 2])


class Broken(io.BytesIO):
    def read(self, size=-1):
        data = super().read(size)
        if not data:
            raise ShortRead("half-way.")
        return data


@pytest.fixture
def far(tmp_path, listed):
    server = Far(tmp_path)
    register_scheme("far", FileStore(server.open))
    for item in listed:
        item["url"] = f"far://host/{os.path.basename(item['url'])}"
    yield server
    del schemes._registered["far"]


def contents(sample):
    return {key: value.read() if isinstance(value, io.BytesIO) else value for key, value in sample.items()}


def keys(dataset):
    return [sample["__key__"] for sample in dataset]


ALL = [f"{number}/{i}" for number, count in enumerate(COUNTS) for i in range(count)]


@pytest.fixture
def installed():
    """Make `import webdataset` find tarmac during a test."""
    tarmac.compat.install()
    try:
        yield sys.modules["webdataset"]
    finally:
        tarmac.compat.uninstall()
