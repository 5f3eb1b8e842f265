"""Combine the parts of tokens: time beside `cat` of the same bytes, and memory while the data grows tenfold.

Beside it is the way of the scripts that people use: all parts are loaded, joined by `torch.cat`, and saved.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import peak_memory
from bench.registry import Done, Site, Work, case
from tarmac.limits import MIB

LENGTH, CAPTION = 512, 60
"""Tokens of a row, on average."""
PARTS = 4
VOCABULARY = 50_000
GROWTH, MOST = 10, 1.10
"""How much more data there is, and how much more memory it may take."""
SHARD = 32 * MIB
"""Small shards, so that the smaller data fill some, too."""


def parts(site: Site, rows: int, length: int) -> Path:
    """Return the parts of a finished job of `tokenize`, and beside them the same tokens as raw arrays."""
    path = site.data / f"parts-{rows}-{length}"
    if not path.exists():
        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        write_parts(part, rows, length)
        part.rename(path)
    return path


def write_parts(folder: Path, rows: int, length: int) -> None:
    import tarmac
    from tarmac.tools.mappers.records import Ragged

    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    tokens = rng.integers(0, VOCABULARY, 2048 * length * 2).astype(np.uint16)

    def draw(samples: list[Any]) -> dict[str, Ragged]:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(length // 2, length * 3 // 2, len(samples)))])
        return {"tokens": Ragged(tokens[: offsets[-1]], offsets)}

    for number in range(PARTS):
        with tarmac.TarWriter(folder / f"in-{number}.tar", encoder=False) as writer:
            for row in range(rows // PARTS):
                writer.write({"__key__": f"{number}{row:09d}", "x": b""})
    shards = [folder / f"in-{number}.tar" for number in range(PARTS)]
    tarmac.tokenize(shards, folder / "tokens", mapper=draw, vocab_size=VOCABULARY, jobs=1, progress=False)
    for path in shards:
        path.unlink()


@contextmanager
def temporary(site: Site) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="combined-", dir=site.data))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def run_tarmac(source: Path, target: Path) -> None:
    import tarmac

    tarmac.combine(source / "tokens", target / "out", jobs=1, max_bytes=SHARD, progress=False)


def run_cat(source: Path, target: Path) -> None:
    files = sorted((source / "tokens").glob("*.tar"))
    with open(target / "out", "wb") as file:
        subprocess.run(["cat", *files], stdout=file, check=True)
        os.fsync(file.fileno())


def run_torch(source: Path, target: Path) -> None:
    """Load the tokens of all parts, join them, and save them."""
    import torch

    from tarmac.samples.reader import SampleReader
    from tarmac.tools.mappers.records import from_arrow

    loaded = []
    for path in sorted((source / "tokens").glob("*.tar")):
        for sample in SampleReader([str(path)]):
            values: Any = from_arrow(sample["arrow"]).columns["tokens"]
            loaded.append(torch.from_numpy(values.values.astype(np.int32)))
    joined = torch.cat(loaded)
    with open(target / "out", "wb") as file:
        file.write(joined.numpy().astype(np.uint16).data)
        os.fsync(file.fileno())


SIDES = {"tarmac": run_tarmac, "cat": run_cat, "torch.cat": run_torch}


def combining(site: Site, side: str, rows: int, length: int) -> Work:
    import pyarrow.compute
    import torch

    import tarmac

    assert pyarrow.compute
    assert torch
    assert tarmac.combine
    source = parts(site, rows, length)
    size = sum(path.stat().st_size for path in (source / "tokens").glob("*.tar"))

    def work() -> Done:
        with temporary(site) as target:
            begin = time.perf_counter()
            SIDES[side](source, target)
            seconds = time.perf_counter() - begin
            written = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        return Done(size, seconds, f"{side}: {size / 1e6:.0f} MB in, {written / 1e6:.0f} MB out")

    return work


@case("combine tokens", sides=("tarmac", "cat", "torch.cat"), ratio=0.5, repeat=3)
def combine(site: Site, side: str) -> Work:
    """Rows of about 512 tokens; twice the time of `cat` is allowed."""
    return combining(site, side, 4 * site.small, LENGTH)


@case("combine captions", sides=("tarmac", "cat"))
def combine_captions(site: Site, side: str) -> Work:
    """Rows of about 60 tokens, for which the index is a third of the data."""
    return combining(site, side, 4 * site.small, CAPTION)


@case("combine tokens, memory", sides=("tarmac", "torch.cat"))
def memory(site: Site, side: str) -> Work:
    """The peak memory of a process that combines ten times as much."""
    sources = [parts(site, rows, LENGTH) for rows in (site.small, GROWTH * site.small)]

    def work() -> Done:
        begin, peaks = time.perf_counter(), []
        for source in sources:
            with temporary(site) as target:
                peaks.append(measured(side, source, target))
        growth = peaks[1] / peaks[0]
        note = f"{side}: {peaks[0] / 1e6:.0f} MB, {peaks[1] / 1e6:.0f} MB with {GROWTH} times the data"
        fault = f"memory grew {growth:.2f} times" if side == "tarmac" and growth > MOST else ""
        return Done(GROWTH * site.small, time.perf_counter() - begin, note, fault)

    return work


def measured(side: str, source: Path, target: Path) -> int:
    """Return the peak memory of one run in a process of its own."""
    command = [sys.executable, "-m", __name__, side, str(source), str(target)]
    return int(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


if __name__ == "__main__":
    SIDES[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
    print(peak_memory())
