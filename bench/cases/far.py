"""A training loader over shards that are 20 ms away, beside the same loader over local ones.

Server, proxy and loader share the cores, so what the network costs is in the figures twice.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from typing import Any

from bench import data
from bench.cases.loading import BATCH, SIZE, calm_opencv, epoch
from bench.registry import Done, Site, Work, case

LOCAL = "local"


def loading(site: Site, side: str, shards: int, *, cached: bool = False, **options: Any) -> Work:
    """Load an epoch of pictures from `shards` shards."""
    import tarmac

    calm_opencv()
    site = replace(site, big=2 * site.big)
    manifest = data.photo_manifest(site, shards)
    source = str(site.data / manifest) if side == LOCAL else f"{site.slow}/{manifest}"
    directory = tempfile.mkdtemp(dir=site.data) if cached and side != LOCAL else None
    cache = None if directory is None else tarmac.Cache(directory)
    dataset = tarmac.Dataset(source, cache=cache).decode(only="cls")
    dataset = dataset.map(tarmac.RandomResizedCrop(SIZE), random=True).to_tuple("jpg", "cls")
    loader = tarmac.Loader(dataset, BATCH, seed=1, tail="short", **options)
    work = epoch(loader, len(dataset))

    def measured() -> Done:
        try:
            done = work()
        finally:
            loader.close()
            if directory is not None:
                shutil.rmtree(directory)
        stats = loader.stats()
        return replace(done, note="" if side == LOCAL else f"{stats['requests']} requests")

    return measured


def row(name: str, shards: int, ratio: float | None, **options: Any) -> None:
    @case(name, sides=("tarmac", LOCAL), ratio=ratio, repeat=3, needs=("nginx",))
    def beside_local(site: Site, side: str) -> Work:
        return loading(site, side, shards, **options)


for number in (1, 8, 64, 512):
    row(f"loader, {number} shards, 20 ms away", number, 0.85)
row("loader, 64 shards, 20 ms away, two processes", 64, 0.85, processes=2, threads=1)
row("loader, 64 shards, 20 ms away, cold cache", 64, 0.85, cached=True)
row("loader, 64 shards, 20 ms away, budget of 64 MB", 64, None, remote_budget="64MB")
