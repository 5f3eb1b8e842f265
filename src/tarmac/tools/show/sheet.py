"""Draw a contact sheet: the first images of a dataset on one page, with keys and captions."""

from __future__ import annotations

import io
import math
import os
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
    from PIL import Image, ImageDraw, ImageFont

    across = math.ceil(math.sqrt(len(tiles)))
    down = math.ceil(len(tiles) / across)
    width, height = SIDE + GAP, SIDE + 2 * LINE + GAP
    page = Image.new("RGB", (across * width + GAP, down * height + GAP), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default()
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


def _fitting(text: str, draw: Any, font: Any) -> str:
    """Return as much of a text as fits, in characters of the font."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text[:200])
    plain = plain.encode("latin-1", "replace").decode("latin-1")
    while plain and draw.textlength(plain, font=font) > SIDE:
        plain = plain[:-4] + "..." if len(plain) > 6 else plain[:-1]
        if plain.endswith("......"):
            plain = plain[:-3]
    return plain
