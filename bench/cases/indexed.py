"""Indexed shards: reading in order and at random, opening, and making the index; beside wids and litdata.

wids is no longer part of the webdataset library. `make bench` puts the last version of it into .tools/wids,
where nothing but the cases here looks for it.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import data
from bench.registry import Done, Site, Work, case

SHARDS = 8
PASSES = 3
"""How often every sample is read at random: a tenth of a second is too little to time."""
NAMES = 8
"""Under how many names a shard is indexed."""
CORES = len(os.sched_getaffinity(0))
WIDS = Path(__file__).parents[2] / ".tools" / "wids"


def small_shards(site: Site) -> list[str]:
    """The small samples in several shards, with their indexes and a manifest beside them."""
    from tarmac import TarWriter

    paths = [_named(site, f"-{number}of{SHARDS}.tar") for number in range(SHARDS)]
    if not manifest(site).exists():
        site.data.mkdir(parents=True, exist_ok=True)
        samples = data.small_samples(site)
        for number, path in enumerate(paths):
            count = (number + 1) * site.small // SHARDS - number * site.small // SHARDS
            with TarWriter(path) as writer:
                for _ in range(count):
                    writer.write(next(samples))
        from tarmac import index

        index([str(path) for path in paths], str(manifest(site)), progress=False)
    return [str(path) for path in paths]


def manifest(site: Site) -> Path:
    return _named(site, ".json")


def _named(site: Site, rest: str) -> Path:
    return site.data / f"indexed-{site.small}-v{data.VERSION}{rest}"


def wids() -> Any:
    if str(WIDS) not in sys.path:
        sys.path.append(str(WIDS))  # at the end: next to it is an old webdataset that must not be imported
    import wids.wids_index

    return wids


def opened(site: Site, side: str) -> Callable[[], Any]:
    """What opens the dataset, once everything is imported."""
    small_shards(site)
    if side == "wids":
        library = wids()
        # The shards are local: wids would copy each of them into its cache, which is not measured.
        return lambda: library.ShardListDataset(
            str(manifest(site)), transformations=[], localname=lambda url: url
        )
    import pyarrow.ipc  # noqa: F401 (what tarmac imports when it opens an index)

    from tarmac import Dataset

    return lambda: Dataset(str(manifest(site)))


def litdata_copy(site: Site) -> str:
    """The small samples as litdata's own format has them, with the same raw bytes."""
    from litdata.streaming.writer import BinaryWriter

    from tarmac import read

    location = _named(site, "-litdata")
    if not location.exists():
        part = location.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        writer = BinaryWriter(str(part), chunk_bytes="64MB")
        for number, sample in enumerate(sample for path in small_shards(site) for sample in read(path)):
            writer.add_item(number, sample)
        writer.done()
        writer.merge(1)
        part.rename(location)
    return str(location)


def counted(samples: Callable[[], Any], expected: int) -> Work:
    def work() -> Done:
        count = sum(1 for _ in samples())
        return Done(count, fault="" if count == expected else f"{count} samples instead of {expected}")

    return work


def litdata_reading(site: Site) -> Work:
    from litdata import StreamingDataset

    location = litdata_copy(site)
    return counted(lambda: StreamingDataset(location, shuffle=False), site.small)


@case("read 800 B text + class, indexed", ratio=60)
def in_order(site: Site, side: str) -> Work:
    shards = small_shards(site)
    if side == "webdataset":
        from webdataset import WebDataset

        return counted(lambda: WebDataset(shards, shardshuffle=False), site.small)
    return counted(opened(site, side), site.small)


@case("read the same, each from its own format", sides=("tarmac", "litdata"), ratio=2)
def in_order_litdata(site: Site, side: str) -> Work:
    if side == "litdata":
        return litdata_reading(site)
    return counted(opened(site, side), site.small)


def at_random(site: Site, side: str, batch: int) -> Work:
    """Every sample some times, in a random order, from shards that are open."""
    dataset = opened(site, side)()
    order = random.Random(data.SEED).sample(range(site.small), site.small)
    for index in range(0, site.small, max(site.small // SHARDS // 2, 1)):
        dataset[index]

    def several(indices: list[int]) -> list[Any]:
        return [dataset[index] for index in indices]

    fetch = dataset.batch if side == "tarmac" and batch > 1 else several

    def work() -> Done:
        for _ in range(PASSES):
            for start in range(0, site.small, batch):
                results = fetch(order[start : start + batch])
        key = results[-1]["__key__"]
        fault = "" if key == f"{order[-1]:08d}" else f"{key} instead of {order[-1]}"
        return Done(site.small * PASSES, fault=fault)

    return work


@case("random access to 800 B text + class", sides=("tarmac", "wids"), ratio=3)
def singly(site: Site, side: str) -> Work:
    return at_random(site, side, 1)


@case("the same in batches of 64", sides=("tarmac", "wids"), ratio=8)
def in_small_batches(site: Site, side: str) -> Work:
    return at_random(site, side, 64)


@case("the same in batches of 1000", sides=("tarmac", "wids"), ratio=8)
def in_large_batches(site: Site, side: str) -> Work:
    return at_random(site, side, 1000)


@case("open a dataset, first sample", sides=("tarmac", "wids"), ratio=20)
def first_sample(site: Site, side: str) -> Work:
    open_dataset = opened(site, side)

    def work() -> Done:
        begin = time.perf_counter()
        sample = open_dataset()[0]
        seconds = time.perf_counter() - begin
        right = sample["__key__"] == f"{0:08d}"
        return Done(1, seconds, fault="" if right else "another sample")

    return work


def indexing(side: str, places: list[str], samples: int, jobs: int) -> Work:
    """Each shard under several names, so that starting processes is not all there is to see."""
    target = Path(places[0]).parent / f"index-{os.getpid()}"
    places = places * NAMES
    shards = [str(target / f"{number}.tar") for number in range(len(places))]
    if side == "wids":
        create = wids().wids_index.main_create
        options = Namespace(files=shards, output=f"{target}/index.json", name="", info=None, base=None)

        def make() -> None:
            create(options)
            os.unlink("/tmp/shard.tar")  # to which it copies each shard
    else:
        from tarmac import index

        def make() -> None:
            index(shards, f"{target}/index.json", digests=True, jobs=jobs, progress=False)

    def work() -> Done:
        target.mkdir()
        try:
            for shard, location in zip(shards, places, strict=True):
                os.symlink(location, shard)
            make()
            return Done(samples * NAMES)
        finally:
            shutil.rmtree(target)

    return work


@case("index 80 KB images + JSON with digests", sides=("tarmac", "wids"), ratio=4)
def indexing_images(site: Site, side: str) -> Work:
    """All cores here; `widsindex create` knows only one. Digests are of fields here, of shards there."""
    return indexing(side, [str(data.big_shard(site))], site.big, CORES)


@case("index 800 B text + class with digests", sides=("tarmac", "wids"), ratio=4)
def indexing_small(site: Site, side: str) -> Work:
    return indexing(side, small_shards(site), site.small, CORES)


@case("the same index in one process", sides=("tarmac", "wids"))
def indexing_in_one_process(site: Site, side: str) -> Work:
    return indexing(side, small_shards(site), site.small, 1)
