"""Split a shard of a gigabyte into smaller ones, compared with `cat` and with a script.

tarmac syncs what it writes, so `cat` is timed with a `sync` of its file, too; the script does not sync. The notes have
the peak memory.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import time
from functools import partial
from pathlib import Path

from bench import data
from bench.registry import Done, Site, Work, case

SAMPLES = 1000
"""Samples of each shard that is made."""
CORES = len(os.sched_getaffinity(0))


def _shard(site: Site) -> Path:
    """80 KB images with facts about them: a gigabyte at full size."""
    return data.big_shard(data.gigabyte(site))


def with_tarmac(shard: Path, target: Path):
    """On all cores, the default."""
    import tarmac

    output = f"{target}/x-{{i:06d}}.tar"
    copy = tarmac.copy  # imports it before the clock starts
    return lambda: copy(str(shard), output, max_samples=SAMPLES, jobs=CORES, progress=False)


def with_webdataset(shard: Path, target: Path):
    """The script that people write."""
    import webdataset

    def act() -> None:
        with webdataset.ShardWriter(f"{target}/x-%06d.tar", maxcount=SAMPLES, verbose=0) as writer:
            for sample in webdataset.WebDataset(str(shard), shardshuffle=False):
                writer.write({name: value for name, value in sample.items() if name != "__url__"})

    return act


def with_cat(shard: Path, target: Path, *, sync: bool = True):
    def act() -> None:
        with (target / "x.tar").open("wb") as file:
            subprocess.run(["cat", str(shard)], stdout=file, check=True)
            if sync:
                os.fsync(file.fileno())

    return act


BY = {
    "tarmac": with_tarmac,
    "webdataset": with_webdataset,
    "cat": partial(with_cat, sync=False),
    "cat, sync": with_cat,
}


def splitting(site: Site, side: str) -> Work:
    shard, target = _shard(site), site.data / f"copied-{os.getpid()}"
    act = BY[side](shard, target)
    count = data.gigabyte(site).big
    subprocess.run(["cat", str(shard)], stdout=subprocess.DEVNULL, check=True)  # all read it from memory

    def work() -> Done:
        target.mkdir()
        try:
            begun = time.perf_counter()
            act()
            seconds = time.perf_counter() - begun
            size = sum(path.stat().st_size for path in target.glob("*.tar"))
            whole = shard.stat().st_size * 0.99 < size
            fault = "" if whole else f"{size} bytes came out"
            workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
            return Done(count, seconds, f"{size / 1e6:.0f} MB, memory of a child {workers} MB", fault)
        finally:
            shutil.rmtree(target)

    return work


@case("split a shard of 80 KB images", ratio=5)
def split(site: Site, side: str) -> Work:
    """As its user starts each."""
    return splitting(site, side)


@case("the same beside cat", sides=("tarmac", "cat, sync"), ratio=0.7)
def beside_cat(site: Site, side: str) -> Work:
    return splitting(site, side)


@case("the same beside cat without a sync", sides=("tarmac", "cat"), ratio=0.5)
def beside_plain_cat(site: Site, side: str) -> Work:
    return splitting(site, side)
