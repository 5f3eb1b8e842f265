"""Decode a part of an image. With the package `tarmac-native`, only that part of a JPEG is decoded."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tarmac.codecs.images import DIRECT_COLOURS, FORMATS, decode_image, jpeg_header
from tarmac.codecs.pixels import check_pixels
from tarmac.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.uint8]

Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels; right and bottom are exclusive."""
_FAST = True
_MAX_BLOCK = 32
"""Width of the widest JPEG block: the decoder may begin up to that many columns left of a box."""


class OpenImage:
    """An image whose size is known before it is decoded, if its format allows that.

    Pixels are those of `imagehandler("rgb8", fast=True)`, whether the image is decoded whole or in part.
    """

    def __init__(self, data: bytes, limits: Limits = DEFAULT_LIMITS) -> None:
        self._data = data
        self._limits = limits
        self._pixels: Array | None = None
        header = jpeg_header(data) if data.endswith(b"\xff\xd9") else None  # a truncated one is decoded whole
        if header is None or header[2] not in DIRECT_COLOURS:
            self._pixels = self._decode()
            self.height, self.width = self._pixels.shape[:2]
        else:
            self.width, self.height, _ = header
            check_pixels(self.width, self.height, limits.pixels)

    def pixels(self, box: Box) -> Array:
        """Return the pixels of a box as an array of height x width x 3."""
        left, top, right, bottom = box
        if self._pixels is None:
            part = _decode_box(self._data, box)
            if part is not None:
                return part
            self._pixels = self._decode()
        return self._pixels[top:bottom, left:right]

    def _decode(self) -> Array:
        pixels: Array = decode_image(self._data, "rgb8", FORMATS, self._limits.pixels, fast=True)
        return pixels


def _decode_box(data: bytes, box: Box) -> Array | None:
    native = _native()
    if native is None:
        return None
    import numpy as np

    left, top, right, bottom = box
    out = np.empty((bottom - top) * (right - left + _MAX_BLOCK) * 3, np.uint8)
    try:
        first, width = native.decode_box(data, box, out, _FAST)
    except ValueError:
        return None  # damaged: decoding the whole image raises, or shows that it can still be read
    rows = out[: (bottom - top) * width * 3].reshape(bottom - top, width, 3)
    return rows[:, left - first : right - first]


def mirror(image: NDArray[Any]) -> NDArray[Any]:
    """Mirror an image, height x width or with channels last, horizontally and possibly in place."""
    import numpy as np

    native = _native()
    if image.dtype != np.uint8 or image.shape[2:] != (3,):
        return np.ascontiguousarray(image[:, ::-1])
    if native is not None and image.flags.c_contiguous:
        native.mirror(image, image.shape[1])
        return image
    mirrored = np.empty_like(image)
    mirrored.view("V3")[...] = image[:, ::-1].view("V3")  # copying pixels is faster than copying bytes
    return mirrored


@cache
def _native() -> Any:
    try:
        from tarmac_native import jpeg
    except ImportError:
        return None
    return jpeg
