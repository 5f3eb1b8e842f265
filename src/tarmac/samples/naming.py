"""Split member names into the key of a sample and the name of a field.

By convention the key ends at the first dot of the base name: `train/0001.seg.png` is the field `seg.png` of the
sample `train/0001`. Data whose keys contain dots needs another rule. A rule is any function from a name to (key,
field), or to None for a name that belongs to no sample.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable
from functools import partial

from tarmac.errors import BadName

Splitter = Callable[[str], tuple[str, str] | None]

_METADATA = re.compile(rb"__[^/]*__(?:$|/)")
_RESERVED = re.compile(r"__.*__")
_KEY = re.compile(r"(?:(?!\.\.?/)[^/\x00-\x1f\x7f\\]+/)*[^/\x00-\x1f\x7f\\]+")
# Keys that need no further check: they have no dot in the base name either, and cannot be metadata.
_PLAIN_KEY = re.compile(r"(?!__)(?:(?!\.\.?/)[^/\x00-\x1f\x7f\\]+/)*[^/\x00-\x1f\x7f\\.]+").fullmatch
_FIELD = re.compile(r"[^/\x00-\x20\x7f\\]+")


def first_dot(name: str) -> tuple[str, str] | None:
    """Split at the first dot of the base name: the WebDataset convention."""
    return _split_at(name, name.find(".", name.rfind("/") + 1))


def last_dot(name: str) -> tuple[str, str] | None:
    """Split at the last dot: for keys that contain dots and fields that do not."""
    return _split_at(name, name.rfind(".", name.rfind("/") + 1))


def known_fields(fields: Iterable[str]) -> Splitter:
    """Return a rule that splits before the longest of the given fields: for dots in keys and fields."""
    suffixes = sorted(("." + field.lower() for field in fields), key=len, reverse=True)
    return partial(_split_before, tuple(suffixes))  # which pickles, as jobs require


def _split_before(suffixes: tuple[str, ...], name: str) -> tuple[str, str] | None:
    lowered = name.lower()
    for suffix in suffixes:
        if lowered.endswith(suffix):
            return _split_at(name, len(name) - len(suffix))
    return None


def _split_at(name: str, dot: int) -> tuple[str, str] | None:
    key, field = name[:dot], name[dot + 1 :]
    if dot <= 0 or not field or key.endswith("/"):
        return None
    return key, field


def rule_bytes(split_name: Splitter) -> bytes:
    """Return bytes that tell a rule from others; nothing for the default."""
    if split_name is first_dot:
        return b""
    try:
        return pickle.dumps(split_name)
    except Exception:  # a local function
        code, cells = getattr(split_name, "__code__", None), getattr(split_name, "__closure__", None) or ()
        parts = (code.co_code, code.co_consts, code.co_names) if code else split_name
        return repr((parts, [cell.cell_contents for cell in cells])).encode()


def plain_key(key: str) -> str:
    """Return a key without the `./` that `tar cf x.tar .` puts before every name."""
    return key.removeprefix("./")


def is_metadata(name: bytes) -> bool:
    """Return whether a member describes the shard and belongs to no sample: `__index__`, `__meta__/x.json`."""
    return name.startswith(b"__") and _METADATA.match(name) is not None


def is_reserved(field: str) -> bool:
    """Return whether a field name is reserved for information about a sample, such as `__key__`."""
    return field.startswith("__") and _RESERVED.fullmatch(field) is not None


def check_key(key: object, split_name: Splitter = first_dot) -> str:
    """Return the key; raise if it would not read back."""
    if split_name is first_dot and type(key) is str and _PLAIN_KEY(key):
        return key
    if not isinstance(key, str):
        raise BadName(f"expected a string as __key__, got {key!r}.")
    if not _KEY.fullmatch(key):
        raise BadName(
            "a key must be a relative path without empty, . or .. parts, control characters or backslashes.",
            key=key,
        )
    pair = split_name(f"{key}.x")
    if pair != (key, "x") and (
        pair or split_name in (first_dot, last_dot)
    ):  # other rules may not know the field x
        raise BadName(
            "the base name of the key contains a dot, so it would read back as another key.",
            key=key,
            hint='key.replace(".", "_"), or write and read with split_name=tarmac.last_dot.',
        )
    if is_metadata(key.encode("utf-8", "surrogateescape")):
        raise BadName("names of the form __x__ are metadata and would not read back as samples.", key=key)
    return key


def check_field(field: object, key: str, split_name: Splitter = first_dot) -> str:
    """Return the field name; raise if it would not read back."""
    if not isinstance(field, str) or not _FIELD.fullmatch(field):
        dots = isinstance(field, str) and "." in field and split_name is first_dot
        hint = "split_name=tarmac.last_dot, if keys contain dots." if dots else None
        raise BadName(f"expected a field name such as jpg or seg.png, got {field!r}.", key=key, hint=hint)
    if split_name(f"k.{field}") != ("k", field):
        raise BadName(f"the field {field!r} would read back under another name.", key=key)
    if is_reserved(field):
        raise BadName(f"the field name {field!r} is reserved and would not read back.", key=key)
    return field
