"""Pictures for training: a random part of each, at one size, mirrored half of the time."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tarmac.codecs.boxes import Box, OpenImage, mirror
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.runtime.extras import import_extra
from tarmac.steps.fields import getfirst

__all__ = ["random_box", "RandomResizedCrop"]

Array = NDArray[np.uint8]
TRIES = 10


class Random(Protocol):
    """What gives random numbers: a generator of numpy, or the module `random`."""

    def random(self) -> float:
        """A number from 0 up to 1."""


class RandomResizedCrop:
    """A step that makes of each picture a random part of it, at one size.

    >>> crop = tarmac.RandomResizedCrop(224)
    >>> ds = tarmac.Dataset("train.json").decode(only="cls").map(crop, random=True).to_tuple("jpg", "cls")

    It takes the place of decoding: the first of `fields` that a sample has is bytes before, and an array of
    bytes of `size` x `size` x 3 afterwards. Only what is needed of a JPEG is decoded if `tarmac-jpeg` is
    installed; the pixels are the same without it, but damage elsewhere in the picture is not seen then.
    `scale` and `ratio` say how large a part is taken and of which shape, as in torchvision; `mirror` is the
    share of pictures that are turned around.
    """

    def __init__(
        self,
        size: int,
        *,
        fields: str = "jpg;jpeg;png;webp",
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        mirror: float = 0.5,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if size < 1 or not 0 < scale[0] <= scale[1] <= 1 or not 0 < ratio[0] <= ratio[1]:
            raise ValueError(f"no picture has the size {size}, the scale {scale} or the ratio {ratio}")
        self.size, self.fields = size, fields.split(";")
        self.scale, self.ratio, self.mirror = scale, ratio, mirror
        self.limits = limits

    def __call__(self, sample: Mapping[str, Any], rng: Random = random) -> dict[str, Any]:
        data = getfirst(sample, self.fields)
        name = next(name for name in self.fields if name in sample)
        return {**sample, name: self.crop(data, rng)}

    def crop(self, data: bytes, rng: Random = random) -> Array:
        """A random part of one picture."""
        cv2 = import_extra("cv2", "crops", "resized pictures")
        image = OpenImage(data, self.limits)
        part = image.pixels(random_box(image.width, image.height, self.scale, self.ratio, rng))
        # Between pixels where there are not many more of them than wanted; else over all that one stands for.
        coarse = min(part.shape[:2]) > 2 * self.size
        how = cv2.INTER_AREA if coarse else cv2.INTER_LINEAR
        resized: Array = cv2.resize(part, (self.size, self.size), interpolation=how)
        return mirror(resized) if rng.random() < self.mirror else resized


def random_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], rng: Random
) -> Box:
    """Choose a part of a picture, of a random share of its area and a random shape."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(TRIES):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * rng.random())
        shape = math.exp(low + (high - low) * rng.random())
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.random() * (width - w + 1)), int(rng.random() * (height - h + 1))
            return left, top, left + w, top + h
    # None that fits: as much of the middle as has an allowed shape.
    w = min(width, max(1, round(height * ratio[1])))
    h = min(height, max(1, round(width / ratio[0])))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
