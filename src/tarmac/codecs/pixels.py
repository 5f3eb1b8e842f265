"""Check the number of pixels of an image from its first bytes, before a library allocates memory."""

from __future__ import annotations

import re
import struct

from tarmac.errors import DecompressionBomb

_PNG = b"\x89PNG\r\n\x1a\n"
_ICONS = (b"\0\0\1\0", b"\0\0\2\0", b"icns")
_INSIDE_ICONS = re.compile(
    rb"IHDR(?P<png>.{8})|ihdr(?P<jp2>.{8})|\xff\x4f\xff\x51....(?P<j2k>.{8})", re.DOTALL
)


def check_pixels(width: int, height: int, max_pixels: int) -> None:
    """Raise if an image has more pixels than `Limits.pixels`."""
    if width * height > max_pixels:
        raise DecompressionBomb(
            f"the image has {width}x{height} pixels, more than the limit of {max_pixels}.",
            hint="raise Limits.pixels if you trust the data.",
        )


def peek_size(data: bytes, max_pixels: int) -> None:
    """Check the formats for which Pillow warns or allocates memory before it reports the size."""
    if data.startswith(_PNG) and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        check_pixels(width, height, max_pixels)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        size = _webp_size(data)
        if size is not None:
            check_pixels(*size, max_pixels)
    elif data.startswith(_ICONS):
        # An icon declares a small size and may contain images of any size.
        for match in _INSIDE_ICONS.finditer(data):
            size_bytes = match["png"] or match["jp2"] or match["j2k"]
            width, height = struct.unpack(">II", size_bytes)
            check_pixels(width, height, max_pixels)


def _webp_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30:
        return None
    chunk = data[12:16]
    if chunk == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None
