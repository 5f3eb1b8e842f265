"""A loader over as many shards as ImageNet has, and over ten thousand, beside the same loader over ten.

The shards are hard links to one, of a thousand pictures each, so all are in memory; what differs is the cost of
having many. Some of that cost is not the loader's: bare programs, which know the same offsets and read the same
samples in the same order, show how much.
"""

from __future__ import annotations

import itertools
import os
import random
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from bench import data
from bench.cases.loading import BATCH, CORES, SIZE, augment, calm_opencv
from bench.registry import Done, Site, Work, case

FEW = "10 shards"
BARE, BARE_FEW = "bare reads", "bare reads, 10 shards"
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
    steps = max((2 * site.big if pictures else 120 * site.big) // BATCH, 1)
    loader = tarmac.Loader(dataset, BATCH, seed=1, tail="short")
    batches = itertools.chain.from_iterable(itertools.repeat(loader))  # ten shards have a few epochs

    def work() -> Done:
        count = sum(len(batch[1] if pictures else batch) for batch in itertools.islice(batches, steps))
        note = (
            f"{len(os.listdir('/proc/self/fd'))} descriptors, {own_memory():,} MB, opened in {opening:.2f} s"
        )
        return Done(count, note=note if side == "tarmac" else "")

    return work


def reading(site: Site, side: str, shards: int, *, pictures: bool) -> Work:
    """Read the samples of the same batches with `pread`, and crop with simplejpeg and OpenCV; nothing else."""
    import simplejpeg

    import tarmac

    calm_opencv()
    count = 10 if side == BARE_FEW else shards
    each = min(EACH, site.big)
    dataset = tarmac.Dataset(str(site.data / data.photo_manifest(replace(site, big=each * count), count)))
    steps = max((2 * site.big if pictures else 120 * site.big) // BATCH, 1)
    sampler = tarmac.BatchSampler(dataset, BATCH, seed=1, tail="short")
    batches = itertools.chain.from_iterable(itertools.repeat(sampler))
    numbers = [[int(index) for index in batch] for batch in itertools.islice(batches, steps)]
    names = data.linked_photos(replace(site, big=each * count), count)
    with tarfile.open(site.data / names[0]) as file:
        spans = [(member.offset_data, member.size) for member in file]  # a label, and the picture
    table = np.tile(np.array(spans).reshape(-1, 4), (len(names), 1))
    files: list[int] = []

    def read(batch: list[int]) -> list[tuple[bytes, bytes]]:
        places = table.take(batch, axis=0).tolist()
        return [
            (os.pread(files[number // each], size, start), os.pread(files[number // each], length, begin))
            for number, (start, size, begin, length) in zip(batch, places, strict=True)
        ]

    def crop(batch: list[int]) -> int:
        rng = random.Random(batch[0])
        samples = read(batch)
        np.stack([augment(simplejpeg.decode_jpeg(picture), rng) for _, picture in samples])
        return len(samples)

    def work() -> Done:
        with ExitStack() as stack:
            files.extend(stack.enter_context(open(site.data / name, "rb")).fileno() for name in names)
            begin = time.perf_counter()
            with ThreadPoolExecutor(CORES) as pool:
                count = (
                    sum(pool.map(crop, numbers)) if pictures else sum(len(read(batch)) for batch in numbers)
                )
            return Done(count, seconds=time.perf_counter() - begin)

    return work


def own_memory() -> int:
    """Return the megabytes that this process alone holds: the pages of shards are the system's."""
    with open("/proc/self/smaps_rollup") as file:
        sizes = [int(line.split()[1]) for line in file if line.startswith("Private_Dirty")]
    return sum(sizes) * 1024 // 1_000_000


def rows(shards: int) -> None:
    sides = {"sides": ("tarmac", FEW, BARE, BARE_FEW), "bare": (BARE, BARE_FEW)}

    @case(f"loader over {shards:,} shards, raw", ratio=0.9, repeat=3, **sides)
    def raw(site: Site, side: str) -> Work:
        make = reading if side in (BARE, BARE_FEW) else loading
        return make(site, side, shards, pictures=False)

    @case(f"loader over {shards:,} shards, pictures", ratio=0.9, repeat=3, **sides)
    def pictures(site: Site, side: str) -> Work:
        make = reading if side in (BARE, BARE_FEW) else loading
        return make(site, side, shards, pictures=True)


rows(600)
rows(1281)
rows(10_000)
