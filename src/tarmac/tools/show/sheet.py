"""Draw a contact sheet: the first images of a dataset on one page, with keys and captions."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tarmac.codecs import kind_of
from tarmac.codecs.images import open_image_field
from tarmac.errors import NoSamples, UsageError
from tarmac.storage import StorageOptions, WriteOptions, write_all
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.show.verb import SampleView

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES = 64
"""Default number of images on a sheet."""
MAX_IMAGES = 1024
SIDE, GAP, LINE = 160, 8, 12
_FONTS = (
    "NotoSansCJK-Regular.ttc",
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "Arial Unicode.ttf",
    "Arial.ttf",
)
_FONT_SIZE = 10
_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def write_sheet(
    samples: Iterable[SampleView],
    url: str,
    *,
    images: int = IMAGES,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> int:
    """Write a sheet of the first images to a file; return their number."""
    image_format = _FORMATS.get(os.path.splitext(url)[1].lower())
    if image_format is None:
        raise UsageError("expected a .png, .jpg or .webp file.", field="sheet", url=url)
    page, count = contact_sheet(samples, images)
    if page is None:
        raise NoSamples("there are no images to show.", hint="tarmac show --fields-only lists the fields.")
    stream = io.BytesIO()
    page.save(stream, format=image_format)
    write_all(url, stream.getvalue(), storage, WriteOptions(overwrite=True))
    return count


def contact_sheet(samples: Iterable[SampleView], images: int = IMAGES) -> tuple[Image | None, int]:
    """Draw the first images and return their number; an unreadable image is a grey tile."""
    tiles: list[tuple[Any, str, str]] = []
    for sample in samples:
        for name, data in sample.fields.items():
            if kind_of(name) == "image":
                tiles.append((_thumbnail(name, data), f"{sample.key}.{name}", _caption(sample)))
        if len(tiles) >= min(images, MAX_IMAGES):
            break
    del tiles[min(images, MAX_IMAGES) :]
    return (_page(tiles), len(tiles)) if tiles else (None, 0)


def _thumbnail(name: str, data: bytes) -> Any:
    try:
        image = open_image_field(name, data)
        image.draft("RGB", (SIDE, SIDE))  # a JPEG need not be decoded larger than that
        image.thumbnail((SIDE, SIDE))
        return image.convert("RGB")
    except Exception:  # libraries raise anything for damaged images
        return None


def _caption(sample: SampleView) -> str:
    for name, data in sample.fields.items():
        if kind_of(name) in ("text", "int"):
            lines = bytes(data).decode("utf-8", "replace").splitlines()
            return lines[0] if lines else ""
    return ""


def _page(tiles: list[tuple[Any, str, str]]) -> Image:
    from PIL import Image, ImageDraw

    across = math.ceil(math.sqrt(len(tiles)))
    down = math.ceil(len(tiles) / across)
    width, height = SIDE + GAP, SIDE + 2 * LINE + GAP
    page = Image.new("RGB", (across * width + GAP, down * height + GAP), "white")
    draw, font = ImageDraw.Draw(page), _font()
    for number, (image, name, caption) in enumerate(tiles):
        left, top = GAP + number % across * width, GAP + number // across * height
        if image is None:
            draw.rectangle((left, top, left + SIDE - 1, top + SIDE - 1), fill="lightgrey")
            draw.text((left + 4, top + SIDE // 2), "unreadable", fill="black", font=font)
        else:
            page.paste(image, (left + (SIDE - image.width) // 2, top + (SIDE - image.height) // 2))
        for line, text in enumerate((name, caption)):
            where = left, top + SIDE + line * LINE
            draw.text(where, _fitting(text, draw, font), fill="black", font=font)
    return page


def _font() -> Any:
    """Return a font of the system with many letters, or the one of Pillow, which has those of ASCII."""
    from PIL import ImageFont

    for name in _FONTS:
        with contextlib.suppress(OSError, ImportError):
            return ImageFont.truetype(name, _FONT_SIZE)
    return ImageFont.load_default()


def readable(text: str, font: Any) -> str:
    """Return a text in letters that the font has: others lose their accents, or become question marks."""
    return "".join(_letter(letter, font) for letter in text)


@functools.lru_cache(4096)
def _letter(letter: str, font: Any) -> str:
    if not letter.isprintable():
        return " "
    plain = unicodedata.normalize("NFKD", letter)
    return next((each for each in (letter, plain[0]) if _has(font, each)), "?")


def _has(font: Any, letter: str) -> bool:
    try:
        return letter.isspace() or bytes(font.getmask(letter)) != bytes(font.getmask("\uffff"))
    except UnicodeError:  # of a bitmap font, which has the letters of Latin-1 at most
        return False


def _fitting(text: str, draw: Any, font: Any) -> str:
    """Return as much of a text as fits, in characters of the font."""
    plain = readable(text[:200], font)
    while plain and draw.textlength(plain, font=font) > SIDE:
        plain = plain[:-4] + "..." if len(plain) > 6 else plain[:-1]
        if plain.endswith("......"):
            plain = plain[:-3]
    return plain
