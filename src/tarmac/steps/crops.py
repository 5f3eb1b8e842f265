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

_ATTEMPTS = 10


class Random(Protocol):
    """A source of random numbers: a NumPy generator, or the module `random`."""

    def random(self) -> float:
        """Return a number from 0 to 1, exclusive."""


class RandomResizedCrop:
    """A step that replaces each image by a random part of it, at one size.

    >>> crop = tarmac.RandomResizedCrop(224)
    >>> ds = tarmac.Dataset("train.json").decode(only="cls").map(crop, random=True).to_tuple("jpg", "cls")

    It replaces the first of `fields` that a sample has. Bytes become an array of uint8 of `size` x `size` x 3,
    which is fastest: with `tarmac-native` installed, only the needed part of a JPEG is decoded. The pixels are the
    same without it, but then damage anywhere in the image is an error, and with it only in that part. An image
    that is decoded already keeps its type, layout and colours: an array has its channels last, a tensor first.
    `scale` is the range of the part's area and `ratio` that of its width divided by its height, as in
    torchvision. `mirror` is the probability of mirroring.
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

    def __repr__(self) -> str:
        return f"RandomResizedCrop({self.size}, scale={self.scale}, ratio={self.ratio}, mirror={self.mirror})"

    def __call__(self, sample: Mapping[str, Any], rng: Random = random) -> Sample:
        data = getfirst(sample, self.fields)
        name = next(name for name in self.fields if name in sample)
        return {**sample, name: self.crop(data, rng)}

    def crop(self, data: Any, rng: Random = random) -> Any:
        """Return a random part of one image: of bytes, of an array, of a tensor or of a Pillow image."""
        if isinstance(data, bytes | bytearray | memoryview):
            image = OpenImage(bytes(data), self.limits)
            return self._resized(image.pixels(self._box(image.width, image.height, rng)), rng)
        if isinstance(data, np.ndarray) and data.ndim in (2, 3):
            left, top, right, bottom = self._box(data.shape[1], data.shape[0], rng)
            return self._resized(data[top:bottom, left:right], rng)
        if hasattr(data, "detach") and data.ndim in (2, 3):  # a tensor; channels come first, if there are any
            import torch

            pixels = data.detach().cpu().numpy()
            cut = self.crop(pixels if data.ndim == 2 else pixels.transpose(1, 2, 0), rng)
            cut = cut if data.ndim == 2 else cut.transpose(2, 0, 1)
            return torch.from_numpy(np.ascontiguousarray(cut)).to(data.device)
        if hasattr(data, "getbands"):  # a Pillow image
            from PIL.Image import Resampling, Transpose

            width, height = data.size
            box = self._box(width, height, rng)
            filtering = Resampling.BOX if self._shrinks(box) else Resampling.BILINEAR
            small = data.resize((self.size, self.size), filtering, box)
            return small.transpose(Transpose.FLIP_LEFT_RIGHT) if rng.random() < self.mirror else small
        what = f"expected an image as bytes, array, tensor or Pillow image, got {_described(data)}."
        raise UsageError(what, field="fields", hint="`fields` names the fields that hold images.")

    def _box(self, width: int, height: int, rng: Random) -> Box:
        return random_box(width, height, self.scale, self.ratio, rng)

    def _shrinks(self, box: Box) -> bool:
        """Return whether to average over areas, because the image shrinks by more than half."""
        left, top, right, bottom = box
        return min(right - left, bottom - top) > 2 * self.size

    def _resized(self, part: NDArray[Any], rng: Random) -> NDArray[Any]:
        cv2 = import_extra("cv2", "crops", "resized crops")
        interpolation = cv2.INTER_AREA if self._shrinks((0, 0, *part.shape[:2])) else cv2.INTER_LINEAR
        resized: NDArray[Any] = cv2.resize(part, (self.size, self.size), interpolation=interpolation)
        resized = resized.reshape(
            self.size, self.size, *part.shape[2:]
        )  # OpenCV drops the axis of one channel
        return mirror(resized) if rng.random() < self.mirror else resized


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")


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
