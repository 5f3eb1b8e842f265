"""Draw a profile: a histogram of each column, and the most common values, as one picture."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from tarmac.display import visible
from tarmac.errors import UsageError
from tarmac.selecting.profile import Column, Profile
from tarmac.storage import StorageOptions, WriteOptions, write_all

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
WIDTH, HEIGHT, GAP, LINE = 360, 180, 20, 14
COLUMNS = 3
_INK, _BAR, _AXIS = (30, 30, 30), (66, 110, 180), (150, 150, 150)


def check_plot(url: str) -> str:
    """Return the format of a picture of this name."""
    kind = _FORMATS.get(os.path.splitext(url)[1].lower())
    if kind is None:
        raise UsageError("expected a .png, .jpg or .webp file.", field="plot", url=url)
    return kind


def write_plot(profile: Profile, url: str, storage: StorageOptions) -> None:
    """Write the picture of a profile to a file."""
    kind, stream = check_plot(url), io.BytesIO()
    _draw(profile).save(stream, format=kind)
    write_all(url, stream.getvalue(), storage, WriteOptions(overwrite=True))


def _draw(profile: Profile) -> Any:
    from PIL import Image, ImageDraw

    panels = [(name, column, column.top) for name, column in profile.columns.items()]
    if profile.domains:
        panels.append(("domains", Column("string"), profile.domains))
    rows = -(-len(panels) // COLUMNS)
    size = COLUMNS * (WIDTH + GAP) + GAP, rows * (HEIGHT + GAP) + GAP
    page = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(page)
    for number, (name, column, counts) in enumerate(panels):
        corner = GAP + number % COLUMNS * (WIDTH + GAP), GAP + number // COLUMNS * (HEIGHT + GAP)
        title = f"{visible(name)[:30]}: {profile.rows - column.nulls} of {profile.rows} rows"
        _text(draw, corner, title)
        if counts:
            _bars(draw, corner, counts)
        elif column.bins:
            _histogram(draw, corner, column)
    return page


def _text(draw: ImageDraw, position: tuple[int, int], text: str) -> None:
    # The font that is always there has Latin letters only.
    draw.text(position, text.encode("latin-1", "replace").decode("latin-1"), fill=_INK)


def _histogram(draw: ImageDraw, corner: tuple[int, int], column: Column) -> None:
    left, top = corner
    bottom, step = top + HEIGHT - LINE, WIDTH / len(column.bins)
    highest = max(column.bins) or 1
    for number, count in enumerate(column.bins):
        height = (HEIGHT - 3 * LINE) * count / highest
        x = left + number * step
        draw.rectangle((x, bottom - height, x + step - 1, bottom), fill=_BAR)
    draw.line((left, bottom, left + WIDTH, bottom), fill=_AXIS)
    low, high = column.quantiles["0.01"], column.quantiles["0.99"]
    unit = " characters" if column.measure == "characters" else ""
    _text(draw, (left, bottom + 2), f"{low:.4g} to {high:.4g}{unit} (1 % to 99 %)")


def _bars(draw: ImageDraw, corner: tuple[int, int], counts: dict[str, int]) -> None:
    left, top = corner
    most = max(counts.values())
    for number, (name, count) in enumerate(counts.items()):
        y = top + (number + 1) * (LINE + 2)
        width = (WIDTH - 160) * count / most
        draw.rectangle((left + 110, y + 2, left + 110 + width, y + LINE - 2), fill=_BAR)
        _text(draw, (left, y), visible(name)[:17])
        _text(draw, (left + int(width) + 115, y), str(count))
