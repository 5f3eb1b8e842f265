"""A loader over as many shards as ImageNet has, and over ten thousand, beside the same loader over ten.

The shards are hard links to one, of a thousand pictures each, so all are in memory; what differs is the cost of
having many.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import replace
from typing import Any

from bench import data
from bench.cases.loading import BATCH, SIZE, calm_opencv
from bench.registry import Done, Site, Work, case

FEW = "10 shards"
EACH = 1000


def loading(site: Site, side: str, shards: int, *, pictures: bool) -> Work:
    """Load batches from `shards` shards, which are open; the note says how long it took to open them."""
    import tarmac

    calm_opencv()
    count = 10 if side == FEW else shards
    each = min(EACH, site.big)
    manifest = data.photo_manifest(replace(site, big=each * count), count)
    dataset: Any = tarmac.Dataset(str(site.data / manifest))
    begin = time.perf_counter()
    for first in range(0, len(dataset), each):
        dataset[first]
    opening = time.perf_counter() - begin
    if pictures:
        crop = tarmac.RandomResizedCrop(SIZE)
        dataset = dataset.decode(only="cls").map(crop, random=True).to_tuple("jpg", "cls")
    else:
        dataset = dataset.map(len)
    steps = max((site.big if pictures else 20 * site.big) // BATCH, 1)
    batches = iter(tarmac.Loader(dataset, BATCH, seed=1, tail="short"))

    def work() -> Done:
        count = sum(len(batch[1] if pictures else batch) for batch in itertools.islice(batches, steps))
        note = (
            f"{len(os.listdir('/proc/self/fd'))} descriptors, {own_memory():,} MB, opened in {opening:.2f} s"
        )
        return Done(count, note=note if side == "tarmac" else "")

    return work


def own_memory() -> int:
    """Return the megabytes that this process alone holds: the pages of shards are the system's."""
    with open("/proc/self/smaps_rollup") as file:
        sizes = [int(line.split()[1]) for line in file if line.startswith("Private_Dirty")]
    return sum(sizes) * 1024 // 1_000_000


def rows(shards: int) -> None:
    @case(f"loader over {shards:,} shards, raw", sides=("tarmac", FEW), ratio=0.9, repeat=3)
    def raw(site: Site, side: str) -> Work:
        return loading(site, side, shards, pictures=False)

    @case(f"loader over {shards:,} shards, pictures", sides=("tarmac", FEW), ratio=0.9, repeat=3)
    def pictures(site: Site, side: str) -> Work:
        return loading(site, side, shards, pictures=True)


rows(600)
rows(1281)
rows(10_000)
