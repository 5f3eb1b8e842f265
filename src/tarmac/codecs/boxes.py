"""Decode a part of an image at the size that is needed.

A JPEG holds blocks of 8x8 pixels, which can be decoded to 4x4, 2x2 or 1x1. With the package `tarmac-native`, only the
needed part is decoded; without it, the whole image at the same scale, with the same pixels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarmac.codecs import accelerator
from tarmac.codecs.images import DIRECT_COLOURS, FORMATS, decode_image, jpeg_header
from tarmac.codecs.pixels import check_pixels
from tarmac.codecs.resize import WHOLE, Region, resize, resize_array, weigh
from tarmac.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.uint8]

Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels; right and bottom are exclusive."""
_SCALES = (1, 2, 4)
"""Eighths at which JPEGs are decoded. For others, libjpeg-turbo has no vector instructions and needs more time."""
_MAX_BLOCK = 32
"""Width of the widest JPEG block: the decoder may begin up to that many columns left of a box."""


class OpenImage:
    """An image whose size is known before it is decoded, if its format allows that.

    With `exact`, it is decoded whole and as `decode("rgb8")` does. Otherwise subsampled colours are not smoothed.
    """

    def __init__(self, data: bytes, limits: Limits = DEFAULT_LIMITS, *, exact: bool = False) -> None:
        self._data = data
        self._limits = limits
        self._exact = exact
        self._pixels: Array | None = None
        header = jpeg_header(data) if data.endswith(b"\xff\xd9") else None  # a truncated one is decoded whole
        if exact or header is None or header[2] not in DIRECT_COLOURS:
            self._pixels = self._decode()
            self.height, self.width = self._pixels.shape[:2]
        else:
            self.width, self.height, _ = header
            check_pixels(self.width, self.height, limits.pixels)

    def resized(self, region: Region) -> Array:
        """Return a part of the image at another size, as an array of height x width x 3."""
        scale = self.scale(region)
        across, down = weigh(region.across, scale), weigh(region.down, scale)
        part = self.part((across.begin, down.begin, across.end, down.end), scale)
        if part is None:
            return resize_array(self.pixels(), region)
        pixels, left, top = part
        return resize(pixels, across.moved(left, mirrored=region.mirrored), down.moved(top))

    def scale(self, region: Region) -> int:
        """Return the eighths at which to decode: the fewest that do not lose what the result can show."""
        if (
            self._pixels is not None or max(self.width, self.height) < WHOLE
        ):  # whose scales are hard to tell apart
            return WHOLE
        return next((scale for scale in _SCALES if region.allows(scale)), WHOLE)

    def part(self, box: Box, scale: int = WHOLE) -> tuple[Array, int, int] | None:
        """Return pixels of the image at a scale that include a box of it, and where they begin: left and top.

        Return None if the image must be decoded whole.
        """
        if self._pixels is not None:
            return None
        return _decode_box(self._data, box, scale) or self._decode_scaled(box, scale)

    def pixels(self) -> Array:
        """Return all pixels, as an array of height x width x 3."""
        if self._pixels is None:
            self._pixels = self._decode()
        return self._pixels

    def _decode_scaled(self, box: Box, scale: int) -> tuple[Array, int, int] | None:
        import simplejpeg

        width, height = (-(-size * scale // WHOLE) for size in (self.width, self.height))
        try:
            pixels = simplejpeg.decode_jpeg(
                self._data, "RGB", fastupsample=True, min_width=width, min_height=height
            )
        except ValueError:
            return None  # damaged: decoding the whole image raises, or shows that it can still be read
        left, top, right, bottom = box
        return pixels[top:bottom, left:right], left, top

    def _decode(self) -> Array:
        pixels: Array = decode_image(self._data, "rgb8", FORMATS, self._limits.pixels)
        return pixels


def _decode_box(data: bytes, box: Box, scale: int) -> tuple[Array, int, int] | None:
    native = accelerator.jpeg()
    if native is None:
        return None
    import numpy as np

    left, top, right, bottom = box
    out = np.empty((bottom - top) * (right - left + _MAX_BLOCK) * 3, np.uint8)
    try:
        first, width = native.decode_box(data, scale, box, out)
    except ValueError:
        return None  # damaged, but perhaps not as simplejpeg sees it
    return out[: (bottom - top) * width * 3].reshape(bottom - top, width, 3), first, top
