"""Packing a tree of files into shards, files in the page cache, shards synced where they go.

Beside GNU tar in one process, beside a script on all cores, as `tarmac pack` runs if nothing is said. Of
a gigabyte in half a second the disk is the limit, so shards of large files go to memory, then to the disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench import data
from bench.registry import Done, Site, Work, case

IN_FOLDER = 1000
TINY_BYTES = 300
SAMPLES = 500
"""Samples of each shard that a script and all cores make."""
CORES = len(os.sched_getaffinity(0))
MEMORY = Path("/dev/shm")


def tree(site: Site, name: str, samples: Iterator[tuple[str, bytes]]) -> Path:
    """Make the tree once; a name without `.part` is a whole tree."""
    root = site.data / f"tree-{name}-v{data.VERSION}"
    if not root.exists():
        part = root.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        for number, (file, content) in enumerate(samples):
            folder = part / f"{number // IN_FOLDER:04d}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        part.rename(root)
    return root


def tiny_tree(site: Site) -> Path:
    samples = ((f"{s['__key__']}.txt", s["txt"][:TINY_BYTES].encode()) for s in data.small_samples(site))
    return tree(site, f"tiny-{site.small}", samples)


def big_tree(site: Site) -> Path:
    return tree(site, f"big-{site.big}", ((f"{s['__key__']}.jpg", s["jpg"]) for s in data.big_samples(site)))


def packing(
    site: Site, side: str, root: Path, count: int, processes: int = 1, location: Path | None = None
) -> Work:
    location = location if location and location.is_dir() else site.data
    target = location / f"tarmac-packed-{os.getpid()}"
    if side == "tarmac":
        act = with_tarmac(root, target, processes)
    else:
        act = {"GNU tar": with_tar, "webdataset": with_webdataset}[side](root, target)

    def work() -> Done:
        target.mkdir()
        try:
            begun = time.perf_counter()
            act()
            seconds = time.perf_counter() - begun
            size = sum(path.stat().st_size for path in target.glob("*.tar"))
            return Done(count, seconds, note=f"{size / 1e6:.0f} MB")
        finally:
            shutil.rmtree(target)

    return work


def with_tarmac(root: Path, target: Path, processes: int):
    """Return all of `tarmac pack`: planning, fingerprints, the ledger."""
    from tarmac import pack

    output, size = f"{target}/x-{{i:06d}}.tar", 10_000 if processes == 1 else SAMPLES
    return lambda: pack(root, output, max_samples=size, jobs=processes, progress=False)


def with_tar(root: Path, target: Path):
    def act() -> None:
        subprocess.run(["tar", "cf", target / "x.tar", "-C", root, "."], check=True)
        sync(target)

    return act


def sync(target: Path) -> None:
    """Bring to the disk what does not see to that by itself."""
    for path in target.glob("*.tar"):
        with path.open("rb") as shard:
            os.fsync(shard.fileno())


def with_webdataset(root: Path, target: Path):
    """The script that people write, and a sync."""
    from webdataset import ShardWriter

    def act() -> None:
        with ShardWriter(f"{target}/x-%06d.tar", maxcount=SAMPLES, verbose=0) as shards:
            for path in sorted(root.rglob("*.*")):
                key, _, field = str(path.relative_to(root)).partition(".")
                shards.write({"__key__": key, field: path.read_bytes()})
        sync(target)

    return act


@case("pack tiny files", sides=("tarmac", "GNU tar"), ratio=1 / 3, needs=("tar",))
def tiny(site: Site, side: str) -> Work:
    return packing(site, side, tiny_tree(site), site.small)


@case("pack 80 KB files", sides=("tarmac", "GNU tar"), ratio=1 / 1.2, needs=("tar",))
def big(site: Site, side: str) -> Work:
    site = data.gigabyte(site)
    return packing(site, side, big_tree(site), site.big)


@case("pack tiny files, by script", ratio=5)
def tiny_script(site: Site, side: str) -> Work:
    return packing(site, side, tiny_tree(site), site.small, CORES)


@case("pack 80 KB files, by script", ratio=5)
def big_script(site: Site, side: str) -> Work:
    site = data.gigabyte(site)
    return packing(site, side, big_tree(site), site.big, CORES, MEMORY)


@case("the same to the disk")
def big_disk(site: Site, side: str) -> Work:
    site = data.gigabyte(site)
    return packing(site, side, big_tree(site), site.big, CORES)
