"""Prepare one picture: check it, decode it no larger than needed, resize it, and encode it again if that is needed."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from tarmac.codecs.boxes import OpenImage
from tarmac.codecs.images import DIRECT_COLOURS, FORMATS, jpeg_header, open_image
from tarmac.codecs.pixels import check_pixels
from tarmac.codecs.resize import Region, Span, resize_array
from tarmac.downloading.exif import read_exif
from tarmac.errors import DecodeFailed, DecompressionBomb, UsageError
from tarmac.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.uint8]

Resize = Literal["keep_ratio", "keep_ratio_largest", "center_crop", "border", "no"]
RESIZES = ("keep_ratio", "keep_ratio_largest", "center_crop", "border", "no")
QUALITIES = {"jpg": 95, "png": 4, "webp": 95}
"""The formats, and their qualities by default."""
_BY_SHORTER = ("keep_ratio", "center_crop")
_WHITE = 255
_BYTES_PER_PIXEL, _BEHIND = 8, 4 << 20
"""More than a JPEG needs for a pixel, and more than what follows it: a JPEG with more bytes has another purpose."""
_EXTENSIONS = {"jpeg": "jpg", "tiff": "tif", "jpeg2000": "jp2", "mpo": "jpg", "dib": "bmp"}


class Rejected(Exception):
    """A picture is not kept; `status` says why."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


class PictureArgs(TypedDict, total=False):
    """Choose, resize and encode pictures."""

    size: int | None
    """The length of a side; by default pictures keep their size."""
    resize: Resize
    """`keep_ratio` makes the shorter side `size` long, `keep_ratio_largest` the longer one, `center_crop` also cuts off
    the ends of the longer side, and `border` makes the longer side fit and adds white; `no` keeps the size."""
    only_if_bigger: bool
    """Never enlarge: smaller pictures stay as they are."""
    skip_reencode: bool
    """Keep the bytes of pictures that need no change."""
    original: bool
    """Keep the bytes of all pictures, with their true extension."""
    format: str
    """jpg, png or webp."""
    quality: int | None
    """The quality; of png the compression from 0 to 9; webp above 100 is lossless."""
    min_size: int
    """Leave out pictures whose shorter side is shorter."""
    max_aspect: float | None
    """Leave out pictures whose longer side is more than this many times the shorter one."""
    max_area: int | None
    """Leave out pictures with more pixels."""
    exact: bool
    """Decode JPEGs at their full size, even if a fraction of it is enough."""
    limits: Limits
    """`Limits.pixels` bounds what is decoded."""


@dataclass(frozen=True)
class Pictures:
    """What becomes of pictures; `PictureArgs` documents the arguments."""

    size: int | None = None
    resize: Resize = "keep_ratio"
    only_if_bigger: bool = False
    skip_reencode: bool = False
    format: str = "jpg"
    quality: int | None = None
    original: bool = False
    min_size: int = 0
    max_aspect: float | None = None
    max_area: int | None = None
    exact: bool = False
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.resize not in RESIZES:
            what = f"expected one of {', '.join(RESIZES)}, got {self.resize!r}."
            raise UsageError(what, field="resize")
        if self.format not in QUALITIES:
            what = f"expected one of {', '.join(QUALITIES)}, got {self.format!r}."
            raise UsageError(what, field="format")
        if self.size is None and self.resize not in ("keep_ratio", "no"):
            raise UsageError(f"{self.resize} needs a `size`.", field="resize")
        if self.size is not None and self.size < 1:
            raise UsageError(f"expected a positive number, got {self.size}.", field="size")
        most = {"jpg": 100, "png": 9, "webp": 101}[self.format]
        least = 0 if self.format == "png" else 1
        if self.quality is not None and not least <= self.quality <= most:
            what = f"expected a number from {least} to {most} for {self.format}, got {self.quality}."
            raise UsageError(what, field="quality")
        if self.max_aspect is not None and self.max_aspect < 1:
            raise UsageError(f"expected 1 or more, got {self.max_aspect}.", field="max_aspect")
        if self.original and (self.size is not None or self.format != "jpg" or self.quality is not None):
            what = "`original` keeps the bytes: it excludes `size`, `format` and `quality`."
            raise UsageError(what, field="original")

    @property
    def mode(self) -> str:
        """Return how pictures are resized."""
        return "no" if self.size is None else self.resize

    def options(self) -> dict[str, Any]:
        """Return what the result depends on, for the ledger."""
        names = (
            "size",
            "only_if_bigger",
            "skip_reencode",
            "original",
            "min_size",
            "max_aspect",
            "max_area",
            "exact",
        )
        options = {name: value for name in names if (value := getattr(self, name))}
        quality = QUALITIES[self.format] if self.quality is None else self.quality
        options |= {"resize": self.mode, "format": self.format, "quality": quality}
        return options | ({"pixels": self.limits.pixels} if self.limits != DEFAULT_LIMITS else {})


@dataclass(slots=True)
class Picture:
    """A picture that is ready to be written."""

    data: bytes
    extension: str
    width: int
    height: int
    original_width: int
    original_height: int
    exif: dict[str, Any] = field(default_factory=dict)
    pixels: Array | None = None
    """What was decoded, for hashes."""


def prepare(data: bytes, how: Pictures, boxes: Sequence[Any] = (), *, exif: bool = True) -> Picture:
    """Return a picture as it is to be stored; raise Rejected if it is not kept.

    `boxes` are parts to blur: left, top, right and bottom as fractions of the upright picture.
    """
    try:
        return _prepare(data, how, boxes, exif=exif)
    except DecompressionBomb as error:
        raise Rejected("too_many_pixels", error.what) from None
    except DecodeFailed as error:
        raise Rejected("bad_image", error.what) from None
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError, ZeroDivisionError, IndexError) as error:
        raise Rejected("bad_image", f"{type(error).__name__}: {error}"[:200]) from None  # Pillow, on damage


def _prepare(data: bytes, how: Pictures, boxes: Sequence[Any], *, exif: bool) -> Picture:
    kind = sniff(data)
    if not kind:
        raise Rejected("not_image", f"{len(data)} bytes are not an image in a known format.")
    extension = "jpg" if kind == "jpeg" else _EXTENSIONS.get(kind, kind)
    tags, turn = read_exif(data) if exif or b"Exif" in data[:65536] else ({}, 1)
    source = _Source(data, kind, how, turn)
    width, height = source.size
    _filter(width, height, how)
    region, pad = plan(width, height, how)
    unchanged = region is None and not pad
    if how.original and not boxes:
        pixels = source.resized(None)  # it must be readable to the end
        return Picture(data, extension, width, height, width, height, tags, pixels)
    pixels = source.resized(region)
    if boxes:
        pixels = blur(pixels, boxes, region, width, height)
    keeps = how.skip_reencode and unchanged and extension == how.format and turn == 1 and not source.alpha
    if pad:
        pixels = _pad(pixels, how.size or 0)
    high, wide = pixels.shape[:2]
    encoded = data if keeps and not boxes else encode(pixels, how)
    name = extension if keeps and not boxes else how.format
    return Picture(encoded, name, wide, high, width, height, tags, pixels)


def sniff(data: bytes) -> str:
    """Return the true format of an image by its first bytes, as a name of Pillow in lower case; empty if unknown."""
    for start, name in (
        (b"\xff\xd8\xff", "jpeg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"GIF8", "gif"), (b"BM", "bmp"),
        (b"II*\0", "tiff"), (b"MM\0*", "tiff"), (b"\0\0\1\0", "ico"), (b"qoif", "qoi"),
        (b"\0\0\0\x0cjP  ", "jpeg2000"), (b"\xff\x4f\xff\x51", "jpeg2000"),
    ):  # fmt: skip
        if data.startswith(start):
            return name
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:12] in (b"ftypavif", b"ftypavis"):
        return "avif"
    return ""


def largest_size(head: bytes) -> float:
    """Return the size beyond which a file that begins like this is no image any more: 0 if it is none at all.

    Only the size of a JPEG says how many bytes it can have: other formats may hold many images.
    """
    if not sniff(head):
        return 0
    header = jpeg_header(head)
    return math.inf if header is None else _BEHIND + _BYTES_PER_PIXEL * header[0] * header[1]


class _Source:
    """An image before it is decoded. Sizes and regions are those of the upright picture."""

    def __init__(self, data: bytes, kind: str, how: Pictures, turn: int) -> None:
        self._data, self._how, self._turn, self.alpha = data, how, turn, False
        header = jpeg_header(data) if kind == "jpeg" else None
        self._image: Any = None
        if header is not None and header[2] in DIRECT_COLOURS:
            width, height, _ = header
            check_pixels(width, height, how.limits.pixels)
        else:
            self._image = open_image(data, FORMATS, how.limits.pixels)
            width, height = self._image.size
        self.size = (height, width) if turn >= 5 else (width, height)

    def resized(self, region: Region | None) -> Array:
        """Return a resized part of the upright picture, or all of it: height x width x 3."""
        import numpy as np

        if region is None:
            pixels = self._pixels()
        elif self._image is None and not self._how.exact:
            pixels = _StrictImage(self._data, self._how.limits).resized(_lying(region, self._turn))
        else:
            pixels = resize_array(self._pixels(), _lying(region, self._turn))
        return np.ascontiguousarray(_upright(pixels, self._turn))

    def _pixels(self) -> Array:
        import numpy as np
        from PIL import Image

        if self._image is None:
            import simplejpeg

            decoded: Array = simplejpeg.decode_jpeg(self._data, "RGB")  # raises for any damage
            return decoded
        image = self._image
        image.load()  # raises for a file that is cut off
        if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            self.alpha = True
            upper = image.convert("RGBA")
            ground = Image.new("RGBA", upper.size, (_WHITE, _WHITE, _WHITE, 255))
            image = Image.alpha_composite(ground, upper)
        return np.asarray(image.convert("RGB"))


class _StrictImage(OpenImage):
    """A JPEG in which damage is an error, even if some decoder would tolerate it."""

    def pixels(self) -> Array:
        if self._pixels is None:
            raise DecodeFailed("the JPEG is damaged.")
        return self._pixels


def _lying(region: Region, turn: int) -> Region:
    """Return the region of the stored picture that becomes a region of the upright one."""
    across, down = (region.down, region.across) if turn >= 5 else (region.across, region.down)
    if turn in (2, 3, 7, 8):
        across = _reversed(across)
    if turn in (3, 4, 6, 7):
        down = _reversed(down)
    return Region(across, down)


def _reversed(span: Span) -> Span:
    """Return a centred span counted from the other end: regions here are symmetric up to one pixel."""
    return span._replace(first=span.size - span.last, last=span.size - span.first)


def _upright(pixels: Array, turn: int) -> Array:
    """Return pixels as the EXIF orientation wants them to be seen."""
    if turn >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if turn in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if turn in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def _filter(width: int, height: int, how: Pictures) -> None:
    shorter, longer = sorted((width, height))
    if shorter < how.min_size:
        raise Rejected("filtered", f"{width}x{height}: smaller than {how.min_size}.")
    if how.max_area is not None and width * height > how.max_area:
        raise Rejected("filtered", f"{width}x{height}: more than {how.max_area} pixels.")
    if how.max_aspect is not None and longer > how.max_aspect * shorter:
        raise Rejected("filtered", f"{width}x{height}: an aspect ratio above {how.max_aspect:g}.")


def plan(width: int, height: int, how: Pictures) -> tuple[Region | None, bool]:
    """Return which part of a picture becomes how large (None: it stays as it is), and whether it gets a border."""
    size, mode = how.size or 0, how.mode
    if mode == "no":
        return None, False
    side = min(width, height) if mode in _BY_SHORTER else max(width, height)
    if how.only_if_bigger and side <= size:
        return None, False
    wide, high = (max(1, _rounded(each * size, side)) for each in (width, height))
    if mode == "center_crop":
        return Region(_centred(width, wide, size), _centred(height, high, size)), False
    if (wide, high) == (width, height):
        return None, mode == "border" and wide != high
    if wide * high > how.limits.pixels:
        raise DecompressionBomb(f"the picture would become {wide}x{high} pixels large.")
    return Region(Span.of(0, width, wide), Span.of(0, height, high)), mode == "border" and wide != high


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


def _centred(length: int, resized: int, size: int) -> Span:
    first = (resized - size) // 2
    return Span(0, length, resized, first, first + size)


def _pad(pixels: Array, size: int) -> Array:
    import numpy as np

    high, wide = pixels.shape[:2]
    square = np.full((size, size, 3), _WHITE, np.uint8)
    top, left = (size - high) // 2, (size - wide) // 2
    square[top : top + high, left : left + wide] = pixels
    return square


def blur(pixels: Array, boxes: Sequence[Any], region: Region | None, width: int, height: int) -> Array:
    """Blur parts of a picture beyond recognition; each is grown by a tenth of its longer side."""
    import numpy as np
    from PIL import Image, ImageFilter

    high, wide = pixels.shape[:2]
    across = region.across if region is not None else Span.of(0, width, width)
    down = region.down if region is not None else Span.of(0, height, height)
    image = Image.fromarray(pixels)
    for box in boxes:
        try:
            x0, y0, x1, y1 = (min(max(float(each), 0.0), 1.0) for each in box)
        except (TypeError, ValueError):
            raise Rejected("bad_boxes", f"expected four numbers from 0 to 1, got {box!r}."[:200]) from None
        left, right = sorted((x0 * across.size - across.first, x1 * across.size - across.first))
        top, bottom = sorted((y0 * down.size - down.first, y1 * down.size - down.first))
        grown = 0.1 * max(right - left, bottom - top)
        part = (
            max(math.floor(left - grown), 0), max(math.floor(top - grown), 0),
            min(math.ceil(right + grown), wide), min(math.ceil(bottom + grown), high),
        )  # fmt: skip
        if part[0] < part[2] and part[1] < part[3]:
            radius = max(part[2] - part[0], part[3] - part[1]) / 4
            image.paste(image.crop(part).filter(ImageFilter.GaussianBlur(radius)), part[:2])
    return np.asarray(image)


def encode(pixels: Array, how: Pictures) -> bytes:
    """Encode pixels in the format that is asked for."""
    quality = QUALITIES[how.format] if how.quality is None else how.quality
    if how.format == "jpg":
        import simplejpeg

        encoded: bytes = simplejpeg.encode_jpeg(pixels, quality, "RGB", "420")
        return encoded
    from PIL import Image

    stream = io.BytesIO()
    image = Image.fromarray(pixels)
    if how.format == "png":
        image.save(stream, "PNG", compress_level=quality)
    else:
        image.save(stream, "WEBP", quality=min(quality, 100), lossless=quality > 100)
    return stream.getvalue()
