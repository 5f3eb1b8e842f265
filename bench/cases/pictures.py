"""The steps of pictures on large JPEGs, by the time of the processor that they take, on one core.

Rates are pictures per second of that time, so that what shares the machine matters less.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from bench import data
from bench.registry import Done, Site, Work, case

SIZE = 224
LOWEST = 38.0
"""Decibels that a step must reach beside decoding whole pictures and averaging areas."""
Picture = Callable[[bytes], Any]


def cropped(site: Site) -> list[bytes]:
    from tarmac import read

    return [sample["jpg"] for sample in read(str(data.large_shard(site)))]


def timed(pictures: list[bytes], each: Picture, note: str = "", fault: str = "") -> Work:
    each(pictures[0])  # imports libraries

    def work() -> Done:
        begin = time.process_time()
        for picture in pictures:
            each(picture)
        return Done(len(pictures), time.process_time() - begin, note, fault)

    return work


def bare(picture: bytes) -> Any:
    """Decode a whole picture with nothing around it."""
    import simplejpeg

    return simplejpeg.decode_jpeg(picture)


def area_resized(picture: bytes, region: Any) -> Any:
    """What the steps are compared with: the whole picture, and OpenCV's average of areas."""
    import cv2

    down, across = region.down, region.across
    part = bare(picture)[down.start : down.stop, across.start : across.stop]
    resized = cv2.resize(part, (across.size, down.size), interpolation=cv2.INTER_AREA)
    return resized[down.first : down.last, across.first : across.last]


def decibels(one: Any, other: Any) -> float:
    """Return the peak signal-to-noise ratio of two pictures."""
    import numpy as np

    error = np.mean((one.astype(np.float64) - other) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def quality(step: Any, pictures: list[bytes]) -> tuple[str, str]:
    """Return the lowest and mean quality of some results of a step as a note, and what is wrong with it."""
    values = []
    for seed, picture in enumerate(pictures[:24]):
        region = step.region(1024, 768, random.Random(seed))
        expected = area_resized(picture, region._replace(mirrored=False))
        result = step.transform(picture, random.Random(seed))
        values.append(decibels(result[:, ::-1] if region.mirrored else result, expected))
    note = f"PSNR {min(values):.1f} dB or more, {sum(values) / len(values):.1f} on average"
    return note, "" if min(values) >= LOWEST else f"{note}; {LOWEST:.0f} are required"


def of_step(site: Site, step: Any) -> Work:
    pictures, rng = cropped(site), random.Random(0)
    return timed(pictures, lambda picture: step.transform(picture, rng), *quality(step, pictures))


def of_turboloader(site: Site, **options: Any) -> Work:
    """Count the time of all its threads; the first epoch, which fills its buffers, is left out."""
    import turboloader

    loader = turboloader.DataLoader(
        str(data.large_shard(site)), batch_size=16, image_size=SIZE, output_format="numpy", **options
    )

    def epoch() -> int:
        return sum(len(images) for images, _ in loader)

    epoch()

    def work() -> Done:
        begin = time.process_time()
        return Done(epoch(), time.process_time() - begin)

    return work


def random_crops(site: Site) -> Work:
    import tarmac

    return of_step(site, tarmac.RandomResizedCrop(SIZE))


@case("crop 1024x768 JPEG at random, per core", sides=("tarmac", "bare decoding"), ratio=1.25)
def beside_bare(site: Site, side: str) -> Work:
    """At most 0.8 of the time of decoding whole pictures, and nothing else."""
    return timed(cropped(site), bare) if side == "bare decoding" else random_crops(site)


@case("the same beside a loader in C++", sides=("tarmac", "turboloader"), ratio=1.43)
def beside_turboloader(site: Site, side: str) -> Work:
    """At most 0.7 of its time; it averages areas, too, when told so."""
    if side == "tarmac":
        return random_crops(site)
    return of_turboloader(site, train_aug=True, antialias=True)


@case("the same, which does not average", sides=("tarmac", "turboloader"), ratio=1.43)
def beside_turboloader_bilinear(site: Site, side: str) -> Work:
    return random_crops(site) if side == "tarmac" else of_turboloader(site, train_aug=True)


@case("the same, exact", sides=("tarmac", "bare decoding"))
def beside_bare_exact(site: Site, side: str) -> Work:
    import tarmac

    if side == "bare decoding":
        return timed(cropped(site), bare)
    return of_step(site, tarmac.RandomResizedCrop(SIZE, exact=True))


@case("resize 1024x768 JPEG, keep the centre, per core", sides=("tarmac", "bare decoding"), ratio=1.1)
def centre(site: Site, side: str) -> Work:
    import tarmac

    if side == "bare decoding":
        return timed(cropped(site), bare)
    return of_step(site, tarmac.ResizeCenterCrop(SIZE))


@case("resize 1024x768 JPEG to 256, per core", sides=("tarmac", "bare decoding"))
def resized(site: Site, side: str) -> Work:
    import tarmac

    if side == "bare decoding":
        return timed(cropped(site), bare)
    return of_step(site, tarmac.Resize(256))
