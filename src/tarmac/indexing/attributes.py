"""What the bytes of one field say about a sample, read without decoding more of them than needed.

Images have a width, a height and a number of channels, as stored, from their header; arrays a shape and a
type; JSON any value inside it; text and numbers themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tarmac.codecs.arrays import any_header, usual_header
from tarmac.codecs.basic import json_loads, text_loads
from tarmac.codecs.handlers import extension_of
from tarmac.codecs.images import FORMATS, IMAGE_EXTENSIONS, UNMARKED, open_image
from tarmac.codecs.pixels import check_pixels
from tarmac.indexing.promote import as_text
from tarmac.limits import DEFAULT_LIMITS, Limits

__all__ = ["attributes_of", "is_json", "read_field"]

Lookup = Callable[[str], Any]
"""From an attribute to its value, None where there is none. The attribute "" is the field itself."""

_CHANNELS = {"Gray": 1, "CMYK": 4, "YCCK": 4}


class _Kind(NamedTuple):
    attributes: tuple[str, ...]
    read: Callable[[bytes, str, Limits], Lookup]


def is_json(field: str) -> bool:
    """Whether every attribute is a path into the JSON of this field."""
    return extension_of(field) in ("json", "jsn")


def attributes_of(field: str) -> tuple[str, ...]:
    """The attributes, other than its size, of a field that is not JSON; "" means the field itself."""
    kind = _KINDS.get(extension_of(field))
    return kind.attributes if kind else ()


def read_field(field: str, data: bytes, limits: Limits = DEFAULT_LIMITS) -> Lookup:
    """Read what the attributes of a field need. Errors come as the libraries raise them."""
    extension = extension_of(field)
    return _KINDS[extension].read(data, extension, limits)


def _json(data: bytes, extension: str, limits: Limits) -> Lookup:
    del extension, limits
    return partial(_follow, json_loads(data))


def _follow(value: Any, path: str) -> Any:
    """Walk into JSON along `a.b.0`; a key that has dots itself comes before its parts."""
    if not path:
        return _json_text(value)
    parts = path.split(".")
    while parts:
        step = 1
        if isinstance(value, list) and parts[0].isdecimal() and int(parts[0]) < len(value):
            value = value[int(parts[0])]
        elif isinstance(value, dict):
            cuts = range(len(parts), 0, -1)
            step = next((cut for cut in cuts if ".".join(parts[:cut]) in value), 0)
            if not step:
                return None
            value = value[".".join(parts[:step])]
        else:
            return None
        parts = parts[step:]
    return as_text(value) if isinstance(value, dict | list) else value


def _json_text(value: Any) -> str:
    # A bare JSON field is always JSON, also where it holds no more than a string.
    return as_text([value])[1:-1]


def _image(data: bytes, extension: str, limits: Limits) -> Lookup:
    width, height, channels = _jpeg(data) or _pillow(data, extension, limits)
    check_pixels(width, height, limits.pixels)
    return {"width": width, "height": height, "channels": channels}.get


def _jpeg(data: bytes) -> tuple[int, int, int] | None:
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    import simplejpeg

    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None  # Pillow decides whether it can still be read
    return width, height, _CHANNELS.get(colours, 3)


def _pillow(data: bytes, extension: str, limits: Limits) -> tuple[int, int, int]:
    image = open_image(data, UNMARKED.get(extension, FORMATS), limits.pixels)
    return image.width, image.height, len(image.getbands())


def _array(data: bytes, extension: str, limits: Limits) -> Lookup:
    del extension, limits
    header = usual_header(data[: 10 + int.from_bytes(data[8:10], "little")]) or any_header(data)
    return {"shape": "x".join(map(str, header.shape)), "dtype": str(header.dtype)}.get


def _itself(decode: Callable[[bytes], Any]) -> _Kind:
    return _Kind(("",), lambda data, extension, limits: {"": decode(data)}.get)


def _table() -> dict[str, _Kind]:
    groups = {
        " ".join(IMAGE_EXTENSIONS): _Kind(("width", "height", "channels"), _image),
        "json jsn": _Kind((), _json),
        "npy": _Kind(("shape", "dtype"), _array),
        "txt text transcript": _itself(text_loads),
        "cls cls2 class count index inx id": _itself(int),
    }
    return {name: kind for names, kind in groups.items() for name in names.split()}


_KINDS = _table()
