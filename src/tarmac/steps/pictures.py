"""Steps that crop and resize images. Of a JPEG, they decode no more than the result needs.

A step chooses a region from the size of an image: which part becomes how large. The rest is the same for all.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any, Protocol

from tarmac.codecs.boxes import Box, OpenImage
from tarmac.codecs.decoded import image_size, resize_image
from tarmac.codecs.resize import Region, Size, Span, check_region, check_size, fit, is_positive
from tarmac.errors import UsageError
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.samples.grouping import Sample
from tarmac.steps.fields import getfirst

_ATTEMPTS = 10
_FIELDS = "jpg;jpeg;png;webp"


class Random(Protocol):
    """A source of random numbers: a NumPy generator, or the module `random`."""

    def random(self) -> float:
        """Return a number from 0 to 1, exclusive."""


class PictureStep:
    """A step that replaces the first of `fields` that a sample has by a resized part of it.

    Bytes become an array of uint8, height x width x 3. Subclasses implement `region`.
    """

    is_random: bool = False
    """Whether regions are random, so that `Dataset.map` calls the step with a generator."""

    def __init__(self, fields: str, limits: Limits, *, exact: bool) -> None:
        if not isinstance(fields, str):
            raise UsageError(f"expected names with semicolons between them, got {fields!r}.", field="fields")
        self.fields: list[str] = fields.split(";")
        self.limits = limits
        self.exact = exact

    def region(self, width: int, height: int, rng: Random) -> Region:
        """Return which part of an image of this size becomes how large."""
        raise NotImplementedError

    def __call__(self, sample: Mapping[str, Any], rng: Random = random) -> Sample:
        image = getfirst(sample, self.fields)
        name = next(name for name in self.fields if name in sample)
        return {**sample, name: self.transform(image, rng)}

    def transform(self, image: Any, rng: Random = random) -> Any:
        """Return the result for one image, given as bytes, array, tensor or Pillow image."""
        if isinstance(image, bytes | bytearray | memoryview):
            opened = OpenImage(bytes(image), self.limits, exact=self.exact)
            return opened.resized(self._checked(opened.width, opened.height, rng))
        size = image_size(image)
        if size is None:
            what = f"expected an image as bytes, array, tensor or Pillow image, got {_described(image)}."
            raise UsageError(what, field="fields", hint="`fields` names the fields that hold images.")
        return resize_image(image, self._checked(*size, rng))

    def _checked(self, width: int, height: int, rng: Random) -> Region:
        return check_region(self.region(width, height, rng), self.limits.pixels)


class RandomResizedCrop(PictureStep):
    """A step that replaces each image by a random part of it, at one size.

    >>> crop = tarmac.RandomResizedCrop(224)
    >>> ds = tarmac.Dataset("train.json").decode(only="cls").map(crop, random=True).to_tuple("jpg", "cls")

    It replaces the first of `fields` that a sample has. Bytes become an array of uint8 of `size` x `size` x 3,
    which is fastest: a JPEG is decoded at a fraction of its size if that is large enough, and with `tarmac-native`
    only the needed part of it. The pixels are the same without it, but then damage anywhere in the image is an
    error, and with it only in that part. With `exact`, images are decoded whole, and colours are smoothed.
    An image that is decoded already keeps its type, layout and colours: an array has its channels last, a tensor first.
    `scale` is the range of the part's area and `ratio` that of its width divided by its height, as in
    torchvision. `mirror` is the probability of mirroring.
    """

    is_random = True

    def __init__(
        self,
        size: int,
        *,
        fields: str = _FIELDS,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        mirror: float = 0.5,
        limits: Limits = DEFAULT_LIMITS,
        exact: bool = False,
    ) -> None:
        super().__init__(fields, limits, exact=exact)
        self.size: int = _positive(size)
        self.scale: tuple[float, float] = _bounds("scale", scale, 1)
        self.ratio: tuple[float, float] = _bounds("ratio", ratio, sys.float_info.max)
        if not isinstance(mirror, Real) or not 0 <= mirror <= 1:
            raise UsageError(f"expected a probability, got {mirror!r}.", field="mirror")
        self.mirror: float = mirror

    def __repr__(self) -> str:
        return f"RandomResizedCrop({self.size}, scale={self.scale}, ratio={self.ratio}, mirror={self.mirror})"

    def region(self, width: int, height: int, rng: Random) -> Region:
        left, top, right, bottom = random_box(width, height, self.scale, self.ratio, rng)
        across, down = Span.of(left, right, self.size), Span.of(top, bottom, self.size)
        return Region(across, down, mirrored=rng.random() < self.mirror)


class Resize(PictureStep):
    """A step that resizes each image: `size` is the length of its shorter side, or its width and height.

    >>> ds = tarmac.Dataset("train.json").decode(only="cls").map(tarmac.Resize(256))

    The other arguments are those of `RandomResizedCrop`.
    """

    def __init__(
        self, size: Size, *, fields: str = _FIELDS, limits: Limits = DEFAULT_LIMITS, exact: bool = False
    ) -> None:
        super().__init__(fields, limits, exact=exact)
        self.size: Size = check_size(size)

    def __repr__(self) -> str:
        return f"Resize({self.size})"

    def region(self, width: int, height: int, rng: Random) -> Region:
        del rng
        return fit(width, height, self.size)


class ResizeCenterCrop(PictureStep):
    """A step that resizes each image and keeps its centre, as is usual in evaluation.

    >>> ds = tarmac.Dataset("val.json").decode(only="cls").map(tarmac.ResizeCenterCrop(224))

    The shorter side gets the length `shorter`, by default 8/7 of `size`: 256 for 224. Then the `size` x `size` pixels
    in the middle are kept. The other arguments are those of `RandomResizedCrop`.
    """

    def __init__(
        self,
        size: int,
        *,
        shorter: int | None = None,
        fields: str = _FIELDS,
        limits: Limits = DEFAULT_LIMITS,
        exact: bool = False,
    ) -> None:
        super().__init__(fields, limits, exact=exact)
        self.size: int = _positive(size)
        self.shorter: int = round(self.size * 8 / 7) if shorter is None else _positive(shorter, "shorter")
        if self.shorter < self.size:
            raise UsageError(f"expected at least the size, {size}, got {self.shorter}.", field="shorter")

    def __repr__(self) -> str:
        return f"ResizeCenterCrop({self.size}, shorter={self.shorter})"

    def region(self, width: int, height: int, rng: Random) -> Region:
        del rng
        resized = fit(width, height, self.shorter)
        return Region(self._centre(resized.across), self._centre(resized.down))

    def _centre(self, span: Span) -> Span:
        first = (span.size - self.size) // 2
        return span._replace(first=first, last=first + self.size)


def _positive(number: Any, field: str = "size") -> int:
    if not is_positive(number):
        raise UsageError(f"expected a positive integer, got {number!r}.", field=field)
    return int(number)


def _bounds(field: str, bounds: Any, highest: float) -> tuple[float, float]:
    """Return two numbers; raise unless 0 < low <= high <= highest."""
    try:
        low, high = map(float, bounds)
    except (TypeError, ValueError):
        low = high = 0
    if not 0 < low <= high <= highest:
        limit = f" <= {highest}" if highest == 1 else ""
        raise UsageError(f"expected two numbers, 0 < low <= high{limit}, got {bounds!r}.", field=field)
    return low, high


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
