"""Tables of links for tests, and what downloads made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tarmac
from harness.waiting import FOREVER
from harness.web import LOOPBACK
from tarmac.downloading.network import crawl, schedule

QUICK: dict[str, Any] = {
    "allow_networks": LOOPBACK,
    "timeout": 2.0,
    "backoff": 0.01,
    "max_wait": 10.0,
    "ignore": ["tdmrep"],  # one request less for each host
}
"""Options for servers that answer at once, or never."""


def patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have downloads leave no row to the end of the run because the machine is busy."""
    monkeypatch.setattr(schedule, "SHORTEST_TAIL", float(FOREVER))
    monkeypatch.setattr(crawl, "_SLOW", float(FOREVER))


def table(path: Path, urls: Sequence[str | None], **columns: Sequence[Any]) -> str:
    """Write a table of links, and return its path."""
    pq.write_table(pa.table({"url": pa.array(urls, pa.string()), **columns}), path, row_group_size=64)
    return str(path)


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the status of all rows: the last one of each, in the order of the rows."""
    rows: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.parquet")):
        rows |= {each["row"]: each for each in pq.read_table(path).to_pylist()}
    return [rows[number] for number in sorted(rows)]


def statuses(folder: Path) -> list[str]:
    """Return the status of each row."""
    return [each["status"] for each in lines(folder)]


def counted(folder: Path) -> Counter[str]:
    """Return how many rows have which status."""
    return Counter(statuses(folder))


def samples(folder: Path) -> list[dict[str, Any]]:
    """Return the samples of all shards, in order."""
    return [each for path in sorted(folder.glob("*.tar")) for each in tarmac.read(str(path))]


def outputs(folder: Path) -> dict[str, bytes]:
    """Return the content of all shards and manifests; an index also has the time of its shard."""
    paths = [path for path in folder.iterdir() if path.suffix in (".tar", ".json")]
    return {path.name: path.read_bytes().replace(bytes(folder), b"") for path in paths}


def timeless(folder: Path) -> list[dict[str, Any]]:
    """Return the status of all rows, without what differs from run to run."""
    return [
        {name: each[name] for name in each if name not in ("seconds", "requests")} for each in lines(folder)
    ]
