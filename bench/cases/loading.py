"""A training loader for pictures: decode, random resized crop, flip, batch, on all cores."""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench import data
from bench.registry import Done, Site, Work, case

BATCH = 64
SIZE = 224
CORES = len(os.sched_getaffinity(0))


def augment(image: Any, rng: Any) -> Any:
    """Crop 8 to 100 % of the picture at random, to SIZE x SIZE, and mirror every other one."""
    import cv2

    height, width = image.shape[:2]
    area = height * width * rng.uniform(0.08, 1.0)
    ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
    w = min(round(math.sqrt(area * ratio)), width)
    h = min(round(math.sqrt(area / ratio)), height)
    top, left = int(rng.uniform(0, height - h + 1)), int(rng.uniform(0, width - w + 1))
    crop = cv2.resize(image[top : top + h, left : left + w], (SIZE, SIZE))
    return cv2.flip(crop, 1) if rng.uniform(0, 1) < 0.5 else crop


def for_tarmac(sample: tuple[Any, Any], rng: Any) -> tuple[Any, Any]:
    return augment(sample[0], rng), sample[1]


def for_webdataset(sample: tuple[Any, Any]) -> tuple[Any, Any]:
    import random

    return augment(sample[0], random), sample[1]


def tarmac_batches(site: Site, **options: Any) -> Any:
    import cv2

    import tarmac

    cv2.setNumThreads(0)
    shards = [str(path) for path in data.photo_shards(site)]
    dataset = tarmac.Dataset(shards).decode("rgb8").to_tuple("jpg", "cls").map(for_tarmac, random=True)
    return tarmac.Loader(dataset, BATCH, seed=1, tail="short", **options)


def webdataset_batches(site: Site) -> Any:
    import cv2
    import torch
    import webdataset

    cv2.setNumThreads(0)
    shards = [str(path) for path in data.photo_shards(site)]
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=False)
        .shuffle(1000)
        .decode("rgb8")
        .to_tuple("jpg", "cls")
        .map(for_webdataset)
        .batched(BATCH)
    )
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=CORES)


def bare_decoding(site: Site) -> Work:
    """What libjpeg-turbo can do on these cores with nothing around it."""
    import simplejpeg

    from tarmac import read

    pictures = [sample["jpg"] for path in data.photo_shards(site) for sample in read(str(path))]

    def some(start: int) -> int:
        part = pictures[start::CORES]
        for picture in part:
            simplejpeg.decode_jpeg(picture)
        return len(part)

    def work() -> Done:
        with ThreadPoolExecutor(CORES) as pool:
            return Done(sum(pool.map(some, range(CORES))))

    return work


def epoch(loader: Any, samples: int) -> Work:
    def work() -> Done:
        count = 0
        for images, _ in loader:
            assert images.shape[1:] == (SIZE, SIZE, 3)
            count += len(images)
        return Done(count, fault="" if count == samples else f"{count} samples instead of {samples}")

    return work


@case("training loader: JPEG, random crop, flip, batch", ratio=2.2)
def training(site: Site, side: str) -> Work:
    """As many threads here as worker processes there: one for each core."""
    loader = webdataset_batches(site) if side == "webdataset" else tarmac_batches(site)
    return epoch(loader, site.big)


@case("the same beside bare JPEG decoding", sides=("tarmac", "bare decoding"), ratio=0.85)
def beside_bare(site: Site, side: str) -> Work:
    return bare_decoding(site) if side == "bare decoding" else epoch(tarmac_batches(site), site.big)


@case("the same in one worker process", sides=("tarmac", "bare decoding"))
def in_processes(site: Site, side: str) -> Work:
    if side == "bare decoding":
        return bare_decoding(site)
    return epoch(tarmac_batches(site, processes=1), site.big)


def resumed(site: Site, share: float) -> Work:
    """From a fresh loader to its first batch, after the state of so far into an epoch was loaded."""
    first = tarmac_batches(site)
    begun = first.state_dict()
    state = begun | {"position": int(begun["samples"] * share)}
    for _ in first:  # decoders are imported, shards are in memory
        break

    def work() -> Done:
        begin = time.perf_counter()
        loader = tarmac_batches(site)
        loader.load_state_dict(state)
        images, _ = next(iter(loader))
        seconds = time.perf_counter() - begin
        return Done(1, seconds, fault="" if len(images) else "no batch")

    return work


@case("first batch, at the start of an epoch", sides=("tarmac",), limit=1)
def resumed_at_start(site: Site, _side: str) -> Work:
    return resumed(site, 0)


@case("the same, resumed at 50 %", sides=("tarmac",), limit=1)
def resumed_in_the_middle(site: Site, _side: str) -> Work:
    return resumed(site, 0.5)


@case("the same, resumed at 99 %", sides=("tarmac",), limit=1)
def resumed_at_the_end(site: Site, _side: str) -> Work:
    return resumed(site, 0.99)
