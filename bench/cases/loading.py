"""A training loader for pictures: decode, random resized crop, flip, batch, on all cores."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bench import data
from bench.registry import Done, Site, Work, case

BATCH = 64
SIZE = 224
SHAPES = (0.08, 1.0), (3 / 4, 4 / 3)
"""How large a part of a picture is taken, and of which shape."""
CORES = len(os.sched_getaffinity(0))


def augment(image: Any, rng: Any) -> Any:
    """Crop an array at random, to SIZE x SIZE, and mirror every other one."""
    import cv2

    from tarmac.steps.pictures import random_box

    left, top, right, bottom = random_box(image.shape[1], image.shape[0], *SHAPES, rng)
    crop = cv2.resize(image[top:bottom, left:right], (SIZE, SIZE))
    return crop[:, ::-1] if rng.random() < 0.5 else crop


def augment_image(image: Any, rng: Any) -> Any:
    """The same to an image of Pillow, as torchvision's transforms do it."""
    import numpy as np
    from PIL import Image

    from tarmac.steps.pictures import random_box

    crop = image.crop(random_box(*image.size, *SHAPES, rng)).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return np.asarray(crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else crop)


def for_tarmac(sample: tuple[Any, Any], rng: Any) -> tuple[Any, Any]:
    return augment(sample[0], rng), sample[1]


def for_webdataset(sample: tuple[Any, Any]) -> tuple[Any, Any]:
    return augment(sample[0], random), sample[1]


def for_webdataset_pillow(sample: tuple[Any, Any]) -> tuple[Any, Any]:
    return augment_image(sample[0], random), sample[1]


def calm_opencv() -> None:
    """No threads besides those of the loader, nor the instructions for which processors lower their clock."""
    import cv2

    cv2.setNumThreads(0)
    cv2.ipp.setUseIPP(False)


def tarmac_batches(site: Site, exact: bool = False, **options: Any) -> Any:
    import tarmac

    calm_opencv()
    shards = [str(path) for path in data.photo_shards(site)]
    dataset = tarmac.Dataset(shards)
    if exact:
        dataset = dataset.decode("rgb8").to_tuple("jpg", "cls").map(for_tarmac, random=True)
    else:
        crop = tarmac.RandomResizedCrop(SIZE)
        dataset = dataset.decode(only="cls").map(crop, random=True).to_tuple("jpg", "cls")
    return tarmac.Loader(dataset, BATCH, seed=1, tail="short", **options)


def webdataset_batches(site: Site, spec: str, transform: Any) -> Any:
    import torch
    import webdataset

    calm_opencv()
    shards = [str(path) for path in data.photo_shards(site)]
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=False)
        .shuffle(1000)
        .decode(spec)
        .to_tuple("jpg", "cls")
        .map(transform)
        .batched(BATCH)
    )
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=CORES)


def bare(site: Site, then: Any = lambda image: image) -> Work:
    """What libjpeg-turbo can do on these cores with nothing around it."""
    import simplejpeg

    calm_opencv()

    from tarmac import read

    pictures = [sample["jpg"] for path in data.photo_shards(site) for sample in read(str(path))]

    def some(start: int) -> int:
        part = pictures[start::CORES]
        for picture in part:
            then(simplejpeg.decode_jpeg(picture))
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
    """As many threads here as worker processes there, one for each core; each side as its users write it.

    Here with a step that decodes no more of a picture than it needs; `exact` below is what a user's own
    transform makes of whole pictures.
    """
    if side == "webdataset":
        return epoch(webdataset_batches(site, "pil", for_webdataset_pillow), site.big)
    return epoch(tarmac_batches(site), site.big)


@case("the same, exact, OpenCV on both sides")
def training_opencv(site: Site, side: str) -> Work:
    if side == "webdataset":
        return epoch(webdataset_batches(site, "rgb8", for_webdataset), site.big)
    return epoch(tarmac_batches(site, exact=True), site.big)


@case("the same beside bare JPEG decoding", sides=("tarmac", "bare decoding"), ratio=0.85)
def beside_bare(site: Site, side: str) -> Work:
    return bare(site) if side == "bare decoding" else epoch(tarmac_batches(site), site.big)


@case("the same, exact", sides=("tarmac", "bare decoding"))
def beside_bare_exact(site: Site, side: str) -> Work:
    return bare(site) if side == "bare decoding" else epoch(tarmac_batches(site, exact=True), site.big)


@case("the same, exact, crop and flip on both sides", sides=("tarmac", "bare decoding"), ratio=0.85)
def beside_bare_crops(site: Site, side: str) -> Work:
    """What is left to a loader once its user's transform has run."""
    if side == "tarmac":
        return epoch(tarmac_batches(site, exact=True), site.big)
    return bare(site, lambda image: np.ascontiguousarray(augment(image, random)))


@case("the same in one worker process", sides=("tarmac", "bare decoding"))
def in_processes(site: Site, side: str) -> Work:
    if side == "bare decoding":
        return bare(site)
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
