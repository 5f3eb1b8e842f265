"""A training loader over shards that are 20 ms away, beside the same loader over local ones.

Server, proxy and loader share the cores, so the local loader is faster whatever the remote one does. The limit on these
cores is the local loader while the same bytes are fetched by bare requests and thrown away.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from bench import data
from bench.cases.loading import BATCH, SIZE, calm_opencv, epoch
from bench.registry import Done, Site, Work, case

RANGE, REQUESTS = 1 << 20, 24
LOCAL, LIMIT = "local", "local, and bare requests"
KEPT = "local, and bare requests to a file"
THREADS = "threads"


def loading(site: Site, side: str, shards: int, *, cached: bool = False, **options: Any) -> Work:
    """Load an epoch of pictures from `shards` shards."""
    import tarmac

    calm_opencv()
    site = replace(site, big=8 * site.big)  # the first batch takes half a second, which is little of an epoch
    manifest = data.photo_manifest(site, shards)
    remote = side in ("tarmac", THREADS)
    options = {} if side == THREADS else options
    source = f"{site.slow}/{manifest}" if remote else str(site.data / manifest)
    directory = tempfile.mkdtemp(dir=site.data) if cached and remote else None
    cache = None if directory is None else tarmac.Cache(directory)
    dataset = tarmac.Dataset(source, cache=cache).decode(only="cls")
    dataset = dataset.map(tarmac.RandomResizedCrop(SIZE), random=True).to_tuple("jpg", "cls")
    loader = tarmac.Loader(dataset, BATCH, seed=1, tail="short", **options)
    work = epoch(loader, len(dataset))

    def measured() -> Done:
        try:
            with fetching(site, manifest, side == KEPT) if side in (LIMIT, KEPT) else nullcontext():
                done = work()
        finally:
            loader.close()
            if directory is not None:
                shutil.rmtree(directory)
        stats = loader.stats()
        return replace(done, note=f"{stats['requests']} requests" if remote else "")

    return measured


@contextmanager
def fetching(site: Site, manifest: str, keep: bool) -> Iterator[None]:
    """Fetch the shards of a manifest in ranges of a megabyte while the block runs; wait for the last of them.

    With `keep`, they are written to a file, as a cache does.
    """
    from tarmac import read_manifest
    from tarmac.storage import read_range

    folder = f"{site.slow}/{manifest.rpartition('/')[0]}"
    ranges = [
        (f"{folder}/{os.path.basename(shard.url)}", start, min(start + RANGE, shard.size or 0))
        for shard in read_manifest(str(site.data / manifest)).shards
        for start in range(0, shard.size or 0, RANGE)
    ]
    with ThreadPoolExecutor(REQUESTS) as pool, tempfile.TemporaryFile(dir=site.data) as file:

        def fetch(each: tuple[str, int, int]) -> int:
            content = read_range(*each)
            return file.write(content) if keep else len(content)

        fetched = pool.map(fetch, ranges)
        yield
        assert sum(fetched) > 0


def row(name: str, shards: int, ratio: float | None = None, *, peer: str = LOCAL, **options: Any) -> None:
    @case(name, sides=("tarmac", peer), ratio=ratio, repeat=3, needs=("nginx",))
    def beside_local(site: Site, side: str) -> Work:
        return loading(site, side, shards, **options)


for number in (1, 8, 64, 512):
    row(f"loader, shards 20 ms away: {number}", number)
row("loader, shards 20 ms away: 64, two processes", 64, processes=2, threads=1)
row(
    "loader, shards 20 ms away: 64, two processes beside threads",
    64,
    0.95,
    peer=THREADS,
    processes=2,
    threads=1,
)
row("loader, shards 20 ms away: 64, cold cache", 64, cached=True)
row("loader, shards 20 ms away: 64, budget of 64 MB", 64, remote_budget="64MB")
row("loader, shards 20 ms away: 64, beside the limit", 64, 0.9, peer=LIMIT)
row("loader, shards 20 ms away: 64, cold cache, beside the limit", 64, 0.9, peer=KEPT, cached=True)
row("loader, shards 20 ms away: 512, beside the limit", 512, 0.9, peer=LIMIT)
