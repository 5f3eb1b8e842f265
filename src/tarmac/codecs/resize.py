"""Resize images: the average of an area where they shrink, interpolation where they grow.

Each axis has its own weights: how much of which pixels goes into each pixel of the result. They are 8-bit fractions,
so that bytes are resized in integers, and `tarmac-native` and NumPy give the same result.
"""

from __future__ import annotations

import math
from functools import lru_cache
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tarmac.codecs import accelerator
from tarmac.codecs.pixels import check_pixels
from tarmac.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WHOLE = 8
"""The scale of whole images. Scales are eighths, as in JPEGs."""
Size = int | tuple[int, int]
"""The length of the shorter side, or width and height."""
_SUM = 256
_MAX_CHANNELS = 64
_ROWS = 64


class Span(NamedTuple):
    """One axis of a resized part of an image.

    The pixels from `start` to `stop` become `size` pixels, of which those from `first` to `last` are wanted.
    """

    start: int
    stop: int
    size: int
    first: int
    last: int

    @classmethod
    def of(cls, start: int, stop: int, size: int) -> Self:
        """Return the span that wants all its pixels."""
        return cls(start, stop, size, 0, size)

    @property
    def wanted(self) -> int:
        return self.last - self.first

    @property
    def edges(self) -> tuple[float, float]:
        """What is wanted, in pixels of the image."""
        step = (self.stop - self.start) / self.size
        return self.start + self.first * step, self.start + self.last * step


class Region(NamedTuple):
    """A part of an image, the size that it becomes, and whether it is mirrored."""

    across: Span
    down: Span
    mirrored: bool = False

    @property
    def shrinks(self) -> bool:
        """Return whether both axes become half as long, or less."""
        return all(2 * axis.size <= axis.stop - axis.start for axis in (self.across, self.down))

    def allows(self, scale: int) -> bool:
        """Return whether an image of `scale` eighths has all pixels that the result needs."""
        return all((axis.stop - axis.start) * scale >= WHOLE * axis.size for axis in (self.across, self.down))


def check_size(size: Any) -> Size:
    """Return a valid size; raise for others."""
    pair = isinstance(size, tuple | list)
    numbers = tuple(size) if pair else (size, size)
    if len(numbers) != 2 or not all(map(is_positive, numbers)):
        what = f"expected a positive integer, or a pair of them for width and height, got {size!r}."
        raise UsageError(what, field="size")
    width, height = map(int, numbers)
    return (width, height) if pair else width


def is_positive(number: Any) -> bool:
    """Return whether this is an integer above 0."""
    return not isinstance(number, bool) and isinstance(number, Integral) and int(number) > 0


def fit(width: int, height: int, size: Size) -> Region:
    """Return the whole of an image, at a size."""
    if isinstance(size, int):
        shorter = min(width, height)
        wide, high = size * width // shorter, size * height // shorter
    else:
        wide, high = size
    return Region(Span.of(0, width, wide), Span.of(0, height, high))


def check_region(region: Region, max_pixels: int) -> Region:
    """Return a region whose result is within the limit: one side of a long, thin image may become large."""
    check_pixels(region.across.wanted, region.down.wanted, max_pixels)
    return region


class Axis(NamedTuple):
    """The pixels that go into each pixel of a result: neighbours from `first` on, with their weights.

    `first` never falls, unless the axis is mirrored.
    """

    first: NDArray[np.int32]
    weights: NDArray[np.uint16]

    @property
    def begin(self) -> int:
        return int(self.first[0])

    @property
    def end(self) -> int:
        return int(self.first[-1]) + int(self.weights.shape[1])

    def moved(self, offset: int, *, mirrored: bool = False) -> Axis:
        """Return the same for an image that lacks pixels at its start, and possibly in reverse order."""
        import numpy as np

        first = self.first - np.int32(offset)
        if mirrored:
            return Axis(np.ascontiguousarray(first[::-1]), np.ascontiguousarray(self.weights[::-1]))
        return Axis(first, self.weights)


@lru_cache(maxsize=256)
def weigh(span: Span, scale: int = WHOLE) -> Axis:
    """Return which pixels of an image of `scale` eighths go into each wanted pixel of a span."""
    import numpy as np

    start, length, size = span.start * scale, (span.stop - span.start) * scale, span.size
    # Positions are numbers of steps, of which a pixel has 8 * size, so that all of them are integers.
    step = WHOLE * size
    left = start * size + np.arange(span.first, span.last, dtype=np.int64) * length
    if length >= step:
        first = left // step
        stop = -(-(start + length) // WHOLE)
        even = not (length % step or left[0] % step)  # every pixel of the result begins where a pixel does
        taps = min(length // step + (0 if even else 2), stop - start // WHOLE)
        first = np.minimum(first, stop - taps)
        position = (first[:, None] + np.arange(taps + 1)) * step - left[:, None]
        area = np.minimum(np.maximum(position, 0), length)  # up to each pixel
        share = (area * (_SUM / length) + 0.5).astype(np.uint16)
        weights = share[:, 1:] - share[:, :-1]
    else:
        middle = 2 * left + length - step  # in half steps, from the middle of the first pixel
        first = middle // (2 * step)
        taps = min(2, span.stop - span.start)
        second = (2 * _SUM * (middle - 2 * step * first) + 2 * step) // (4 * step)
        second = np.where(first < span.start, 0, np.where(first >= span.stop - 1, _SUM, second))
        first = first.clip(span.start, span.stop - taps)
        weights = np.stack([_SUM - second, second], 1) if taps == 2 else np.full((span.wanted, 1), _SUM)
    return Axis(first.astype(np.int32), np.ascontiguousarray(weights, np.uint16))


def resize_array(image: NDArray[Any], region: Region) -> NDArray[Any]:
    """Return a resized part of an image: height x width, or with channels last."""
    across, down = weigh(region.across), weigh(region.down)
    part = image[down.begin : down.end, across.begin : across.end]
    return resize(part, across.moved(across.begin, mirrored=region.mirrored), down.moved(down.begin))


def resize(image: NDArray[Any], across: Axis, down: Axis) -> NDArray[Any]:
    """Return the pixels that the axes describe: height x width, or with channels last."""
    import numpy as np

    native = accelerator.pixels()
    height, width, *channels = image.shape
    pixels = image.reshape(height, width, math.prod(channels))
    shape = len(down.first), len(across.first), *channels
    if native is None or image.dtype != np.uint8 or not 1 <= pixels.shape[2] <= _MAX_CHANNELS:
        return _resize(pixels, across, down).reshape(shape)
    out = np.empty(shape, np.uint8)
    native.resize(np.ascontiguousarray(pixels), width, pixels.shape[2], across, down, out)
    return out


def _resize(pixels: NDArray[Any], across: Axis, down: Axis) -> NDArray[Any]:
    """Resize with NumPy, some rows of the result at a time, so that what is between fits into a cache."""
    import numpy as np

    starts = range(0, len(down.first), _ROWS)
    bands = [Axis(down.first[start : start + _ROWS], down.weights[start : start + _ROWS]) for start in starts]
    return np.concatenate(
        [_resize_rows(pixels[band.begin : band.end], across, band.moved(band.begin)) for band in bands]
    )


def _resize_rows(pixels: NDArray[Any], across: Axis, down: Axis) -> NDArray[Any]:
    import numpy as np

    channels = pixels.shape[2]
    columns = (across.first[:, None] * channels + np.arange(channels, dtype=np.int32)).ravel()
    weights = across.weights.repeat(channels, 0)
    rows = pixels.reshape(len(pixels), -1)
    if pixels.dtype == np.uint8:
        halves = (_combine(rows.astype(np.uint16), down.first, down.weights, 0) + np.uint16(1)) >> np.uint16(
            1
        )
        sums = _combine(halves.astype(np.float32), columns, weights, 1, channels)  # exact below 2^24
        return ((sums + np.float32(1 << 14)) * np.float32(1 / (1 << 15))).astype(np.uint8)
    floating = pixels.dtype.kind == "f"
    rows = rows.astype(np.float32 if floating and pixels.dtype.itemsize <= 4 else np.float64)
    sums = _combine(_combine(rows, down.first, down.weights, 0), columns, weights, 1, channels) / (
        _SUM * _SUM
    )
    return (sums if floating else np.rint(sums)).astype(pixels.dtype)


def _combine(
    values: NDArray[Any], first: NDArray[Any], weights: NDArray[Any], axis: int, step: int = 1
) -> NDArray[Any]:
    """Return the weighted sums of neighbours along an axis, in the type of the values."""
    import numpy as np

    sums = np.zeros((), values.dtype)
    for tap, factors in enumerate(weights.T.astype(values.dtype)):
        part = values.take(first + tap * step, axis)
        part *= factors[:, None] if axis == 0 else factors
        part += sums
        sums = part
    return sums
