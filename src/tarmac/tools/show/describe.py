"""Describe the content of a field in text."""

from __future__ import annotations

import json
from typing import Any

from tarmac.codecs import find_codec
from tarmac.codecs.basic import json_loads
from tarmac.codecs.handlers import extension_of
from tarmac.codecs.images import open_image_field
from tarmac.display import visible

MAX_TEXT = 4000
"""Characters of a text that are shown."""


def describe(field: str, data: bytes) -> str:
    """Return text and JSON as they are, images and arrays in a few words, other data in hexadecimal."""
    try:
        return visible(_describe(field, data), keep="\n\t")
    except Exception as error:  # libraries raise anything for damaged data
        reason = " ".join(str(error).split())[:200]
        return visible(f"{len(data)} bytes, invalid {extension_of(field)}: {reason}")


def _describe(field: str, data: bytes) -> str:
    codec = find_codec(field)
    kind = "bytes" if codec is None else codec.kind
    if kind == "image":
        image = open_image_field(field, data)
        return f"{image.format or extension_of(field)} image, {image.width}x{image.height}, {image.mode}"
    decode = None if codec is None else codec.decode
    if kind == "json":
        return _shortened(json.dumps((decode or json_loads)(data), indent=2, ensure_ascii=False))
    if kind == "array" and decode is not None:
        value = decode(data)
        if isinstance(value, dict):
            return "\n".join(f"{name}: {_summary(array)}" for name, array in value.items())
        return "\n".join(map(_summary, value if isinstance(value, list) else [value]))
    return _text(data)


def _summary(array: Any) -> str:
    shape = "x".join(map(str, array.shape)) or "scalar"
    if array.size and array.dtype.kind in "iufb":
        low, high, mean = array.min(), array.max(), array.mean()
        return f"{array.dtype} array, {shape}, from {low:g} to {high:g}, mean {mean:g}"
    return f"{array.dtype} array, {shape}"


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if "\0" not in text and (text or not data):
        return _shortened(text)
    return f"{len(data)} bytes, {data[:32].hex(' ')}{' …' if len(data) > 32 else ''}"


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"
