"""Splitting a shard of a gigabyte into smaller ones, beside what a disk and a plain script can do.

What tarmac writes is on the disk when it ends, so `cat` is timed with a `sync` of its file, too; the script
leaves that to chance. Programs say in the notes how much memory they took.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from bench import data
from bench.registry import Done, Site, Work, case

SAMPLES = 1000
"""Samples of each shard that is made."""


def _shard(site: Site) -> Path:
    """80 KB images with facts about them: a gigabyte at full size."""
    return data.big_shard(replace(site, big=site.big * 25 // 6))


def _target(site: Site) -> Path:
    target = site.data / f"copied-{os.getpid()}"
    shutil.rmtree(target, ignore_errors=True)
    return target


def _by_tarmac(shard: Path, target: Path) -> None:
    """In a process of its own, as a user starts it."""
    pattern = str(target / "x-{i:06d}.tar")
    arguments = ["copy", str(shard), "-o", pattern, "--max-samples", str(SAMPLES), "-j", "1"]
    subprocess.run([sys.executable, "-m", "tarmac", *arguments], check=True, stderr=subprocess.DEVNULL)


def _by_webdataset(shard: Path, target: Path) -> None:
    import webdataset

    target.mkdir(parents=True)
    pattern = str(target / "x-%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=SAMPLES, verbose=0) as writer:
        for sample in webdataset.WebDataset(str(shard), shardshuffle=False):
            writer.write({name: value for name, value in sample.items() if name != "__url__"})


def _by_cat(shard: Path, target: Path) -> None:
    target.mkdir(parents=True)
    with (target / "x.tar").open("wb") as file:
        subprocess.run(["cat", str(shard)], stdout=file, check=True)
        os.fsync(file.fileno())


BY = {"tarmac": _by_tarmac, "webdataset": _by_webdataset, "cat, sync": _by_cat}


def splitting(site: Site, side: str) -> Work:
    shard, by = _shard(site), BY[side]
    count = site.big * 25 // 6
    subprocess.run(["cat", str(shard)], stdout=subprocess.DEVNULL, check=True)  # all read it from memory

    def work() -> Done:
        target = _target(site)
        try:
            begun = time.perf_counter()
            by(shard, target)
            seconds = time.perf_counter() - begun
            size = sum(path.stat().st_size for path in target.glob("*.tar"))
            whole = shard.stat().st_size * 0.99 < size
            fault = "" if whole else f"{size} bytes came out"
            memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
            return Done(count, seconds, f"{size / 1e6:.0f} MB, memory {memory} MB", fault)
        finally:
            shutil.rmtree(target, ignore_errors=True)

    return work


@case("split a shard of 80 KB images", ratio=5)
def split(site: Site, side: str) -> Work:
    """One process each."""
    return splitting(site, side)


@case("the same beside cat", sides=("tarmac", "cat, sync"), ratio=0.5)
def beside_cat(site: Site, side: str) -> Work:
    return splitting(site, side)
