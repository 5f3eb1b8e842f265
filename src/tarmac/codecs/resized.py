"""Decode images at a size: `decode("rgb8", size=256)`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from tarmac.codecs.boxes import OpenImage
from tarmac.codecs.decoded import image_size, resize_image
from tarmac.codecs.handlers import DecodeFunction, DecodeOptions
from tarmac.codecs.images import (
    DIRECT_COLOURS,
    IMAGE_EXTENSIONS,
    ImageHandler,
    convert_pixels,
    imagespecs,
    jpeg_header,
)
from tarmac.codecs.resize import Size, check_region, check_size, fit
from tarmac.limits import Limits


class ResizedImageHandler(ImageHandler):
    """Decodes images according to a spec, at a size: the length of the shorter side, or width and height.

    JPEGs in colour are decoded at a fraction of their size if that is large enough.
    """

    def __init__(
        self, imagespec: str, size: Size, extensions: str | Iterable[str] = IMAGE_EXTENSIONS
    ) -> None:
        super().__init__(imagespec, extensions)
        self.size: Size = check_size(size)

    def find(self, key: str, options: DecodeOptions) -> DecodeFunction | None:
        whole = super().find(key, options)
        if whole is None:
            return None
        return partial(_decode, whole=whole, spec=self.imagespec, size=self.size, limits=options.limits)

    def __repr__(self) -> str:
        return f"ResizedImageHandler({self.imagespec!r}, {self.size})"


def _decode(data: bytes, whole: DecodeFunction, spec: str, size: Size, limits: Limits) -> Any:
    header = jpeg_header(data) if imagespecs[spec][2] == "rgb" else None
    if header is not None and header[2] in DIRECT_COLOURS:
        image = OpenImage(data, limits)
        region = fit(image.width, image.height, size)
        return convert_pixels(image.resized(check_region(region, limits.pixels)), spec)
    decoded = whole(data)
    region = fit(*(image_size(decoded) or (1, 1)), size)
    return resize_image(decoded, check_region(region, limits.pixels))
