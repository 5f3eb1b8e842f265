"""Read attributes of a field, decoding no more of it than necessary.

Images have a width, a height and a number of channels, as stored, from their header; arrays a shape and a
type; JSON any value inside it; text and numbers themselves. A field without a known type is text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tarmac.codecs import find_codec, kind_of
from tarmac.codecs.basic import json_loads, text_loads
from tarmac.errors import NoCodec
from tarmac.indexing.promote import as_text
from tarmac.limits import DEFAULT_LIMITS, Limits

Lookup = Callable[[str], Any]
"""Maps an attribute to its value, or to None if the field has none. The attribute "" is the field itself."""


def is_json(field: str) -> bool:
    """Return whether every attribute is a path into the JSON of this field."""
    return kind_of(field) == "json"


def has_type(field: str) -> bool:
    """Return whether the extension of a field says what it holds; others, such as `score`, may hold text."""
    return find_codec(field) is not None


def attributes_of(field: str) -> tuple[str, ...]:
    """Return the attributes, other than its size, of a field that is not JSON; "" is the field itself."""
    codec = find_codec(field)
    if codec is None:
        return ()
    return codec.attributes or (("",) if codec.kind in ("int", "text") else ())


def read_field(field: str, data: bytes, limits: Limits = DEFAULT_LIMITS) -> Lookup:
    """Read the attributes of a field. Errors of codecs are not translated."""
    codec = find_codec(field)
    if codec is None:
        return {"": text_loads(data)}.get
    if not (codec.read_attributes or codec.kind in ("int", "text", "json")):
        raise NoCodec(f'no codec reads attributes of the field "{field}".')
    if codec.read_attributes is not None:
        return codec.read_attributes(data, limits).get
    if codec.kind == "json":
        return partial(_follow, (codec.decode or json_loads)(data))
    default = int if codec.kind == "int" else text_loads
    return {"": (codec.decode or default)(data)}.get


def _follow(value: Any, path: str) -> Any:
    """Walk into JSON along `a.b.0`; a key that has dots itself comes before its parts."""
    if not path:  # JSON as a whole is always JSON, also where it holds no more than a string
        return as_text([value])[1:-1]
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
