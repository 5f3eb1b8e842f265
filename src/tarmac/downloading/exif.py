"""Read the EXIF data of an image: its tags by name, and which way is up."""

from __future__ import annotations

import io
from typing import Any

_ORIENTATION = 274
_LONGEST = 200
_MOST_BYTES = 1 << 20
"""EXIF is in the first bytes of a file, or in a chunk of it that is looked for this far."""


def read_exif(data: bytes) -> tuple[dict[str, Any], int]:
    """Return the tags of an image, and its orientation from 1 (upright) to 8; damaged EXIF counts as none."""
    head = data[:_MOST_BYTES]
    if b"Exif" not in head and b"eXIf" not in head and b"EXIF" not in head:
        return {}, 1
    from PIL import ExifTags, Image

    try:
        exif = Image.open(io.BytesIO(data)).getexif()
        tags = {**exif, **exif.get_ifd(ExifTags.IFD.Exif)}
    except Exception:  # what damaged EXIF raises in Pillow is not documented
        return {}, 1
    turn = tags.get(_ORIENTATION, 1)
    names = {ExifTags.TAGS.get(tag, str(tag)): _plain(value) for tag, value in sorted(tags.items())}
    return {name: value for name, value in names.items() if value != ""}, turn if turn in range(1, 9) else 1


def _plain(value: Any) -> Any:
    """Return a value that JSON knows."""
    if isinstance(value, int | str):
        return value if isinstance(value, int) else value.replace("\0", "").strip()[:_LONGEST]
    if isinstance(value, bytes):
        return ""
    try:
        return round(float(value), 6)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return str(value)[:_LONGEST]
