"""A part of an image. Of a JPEG only that part is decoded, if the package `tarmac-jpeg` is there."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tarmac.codecs.images import FORMATS, decode_image
from tarmac.codecs.pixels import check_pixels
from tarmac.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.uint8]

__all__ = ["Box", "mirror", "OpenImage"]

Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels; the last two are the first that do not belong to it."""
_FAST = True
_SPARE = 32
"""Columns that the decoder may need to the left of a box: the widest block there is."""


class OpenImage:
    """An image of which the size is known and nothing is decoded yet, if its format allows that.

    Pixels are those of `imagehandler("rgb8", fast=True)`, whether all of it is decoded or a part.
    """

    def __init__(self, data: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
        self._data = data
        self._limits = limits
        self._all: Array | None = None
        header = _jpeg_header(data)
        if header is None:
            self._all = self._whole()
            self.height, self.width = self._all.shape[:2]
        else:
            self.height, self.width = header
            check_pixels(self.width, self.height, limits.pixels)

    def pixels(self, box: Box) -> Array:
        """The pixels of a box as an array of height x width x 3."""
        left, top, right, bottom = box
        if self._all is None:
            part = _decode_box(self._data, box)
            if part is not None:
                return part
            self._all = self._whole()
        return self._all[top:bottom, left:right]

    def _whole(self) -> Array:
        pixels: Array = decode_image(self._data, "rgb8", FORMATS, self._limits.pixels, fast=True)
        return pixels


def _jpeg_header(data: bytes) -> tuple[int, int] | None:
    """Height and width of a JPEG that can be decoded in part: one that was cut off, at best as a whole."""
    if not (data.startswith(b"\xff\xd8\xff") and data.endswith(b"\xff\xd9")):
        return None
    import simplejpeg

    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    return (height, width) if colours in ("YCbCr", "RGB", "Gray") else None


def _decode_box(data: bytes, box: Box) -> Array | None:
    native = _native()
    if native is None:
        return None
    import numpy as np

    left, top, right, bottom = box
    out = np.empty((bottom - top) * (right - left + _SPARE) * 3, np.uint8)
    try:
        first, width = native.decode_box(data, box, out, _FAST)
    except ValueError:
        return None  # damaged: decoding all of it will say so, or show that it can still be read
    rows = out[: (bottom - top) * width * 3].reshape(bottom - top, width, 3)
    return rows[:, left - first : right - first]


def mirror(image: Array) -> Array:
    """Turn a picture around; it may be changed in place."""
    import numpy as np

    native = _native()
    if native is not None and image.flags.c_contiguous:
        native.mirror(image, image.shape[1])
        return image
    turned = np.empty_like(image)
    turned.view("V3")[...] = image[:, ::-1].view("V3")  # by pixels, which is faster than byte by byte
    return turned


@cache
def _native() -> Any:
    try:
        import tarmac_jpeg
    except ImportError:
        return None
    return tarmac_jpeg
