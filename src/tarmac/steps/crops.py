"""Crop images for training: a random part of each, at one size, mirrored half of the time."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tarmac.codecs.boxes import Box, OpenImage, mirror
from tarmac.errors import UsageError
from tarmac.extras import import_extra
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.samples.grouping import Sample
from tarmac.steps.fields import getfirst

Image = NDArray[np.uint8]
_ATTEMPTS = 10


class Random(Protocol):
    """A source of random numbers: a NumPy generator, or the module `random`."""

    def random(self) -> float:
        """Return a number from 0 to 1, exclusive."""


class RandomResizedCrop:
    """A step that replaces each image by a random part of it, at one size.

    >>> crop = tarmac.RandomResizedCrop(224)
    >>> ds = tarmac.Dataset("train.json").decode(only="cls").map(crop, random=True).to_tuple("jpg", "cls")

    It replaces decoding: the first of `fields` that a sample has must be bytes, and becomes an array of uint8
    of `size` x `size` x 3. With `tarmac-jpeg` installed, only the needed part of a JPEG is decoded; the pixels
    are the same, but damage in the rest of the image is not detected. `scale` is the range of the part's area
    and `ratio` that of its width divided by its height, as in torchvision. `mirror` is the probability of
    mirroring.
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
        if size < 1:
            raise UsageError(f"expected a positive number, got {size}.", field="size")
        if not 0 < scale[0] <= scale[1] <= 1:
            raise UsageError(f"expected 0 < low <= high <= 1, got {scale}.", field="scale")
        if not 0 < ratio[0] <= ratio[1]:
            raise UsageError(f"expected 0 < low <= high, got {ratio}.", field="ratio")
        self.size: int = size
        self.fields: list[str] = fields.split(";")
        self.scale: tuple[float, float] = scale
        self.ratio: tuple[float, float] = ratio
        self.mirror: float = mirror
        self.limits = limits

    def __call__(self, sample: Mapping[str, Any], rng: Random = random) -> Sample:
        data = getfirst(sample, self.fields)
        name = next(name for name in self.fields if name in sample)
        return {**sample, name: self.crop(data, rng)}

    def crop(self, data: bytes, rng: Random = random) -> Image:
        """Return a random part of one image."""
        cv2 = import_extra("cv2", "crops", "resized crops")
        image = OpenImage(data, self.limits)
        part = image.pixels(random_box(image.width, image.height, self.scale, self.ratio, rng))
        # Average over areas when shrinking by more than half; interpolate otherwise.
        shrinks = min(part.shape[:2]) > 2 * self.size
        interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        resized: Image = cv2.resize(part, (self.size, self.size), interpolation=interpolation)
        return mirror(resized) if rng.random() < self.mirror else resized


def random_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], rng: Random
) -> Box:
    """Return a random part of an image, with a random area and aspect ratio."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_ATTEMPTS):
        area = width * height * (scale[0] + (scale[1] - scale[0]) * rng.random())
        aspect = math.exp(low + (high - low) * rng.random())
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.random() * (width - w + 1)), int(rng.random() * (height - h + 1))
            return left, top, left + w, top + h
    # Nothing fitted: take the largest central part with an allowed aspect ratio.
    w = min(width, max(1, round(height * ratio[1])))
    h = min(height, max(1, round(width / ratio[0])))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
