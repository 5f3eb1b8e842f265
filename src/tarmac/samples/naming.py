"""The naming rule: which part of a member's name is the sample's key, which is the field.

By convention the key is everything up to the first dot of the base name, directories included, and
the rest is the field: `train/0001.seg.png` is field `seg.png` of sample `train/0001`. Data whose keys
contain dots needs another rule; a rule is any function from a name to (key, field), or to None for a
name that belongs to no sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tarmac.errors import BadName

__all__ = [
    "check_field",
    "check_key",
    "first_dot",
    "is_metadata",
    "is_reserved",
    "known_fields",
    "last_dot",
    "plain_key",
    "Splitter",
]

Splitter = Callable[[str], tuple[str, str] | None]

_METADATA = re.compile(rb"__[^/]*__(?:$|/)")
_RESERVED = re.compile(r"__.*__")
_KEY = re.compile(r"(?:(?!\.\.?/)[^/\x00-\x1f\x7f\\]+/)*[^/\x00-\x1f\x7f\\]+")
# Keys of which one look is enough: also no dot in the last part, and none that begins as metadata does.
_PLAIN_KEY = re.compile(r"(?!__)(?:(?!\.\.?/)[^/\x00-\x1f\x7f\\]+/)*[^/\x00-\x1f\x7f\\.]+").fullmatch
_FIELD = re.compile(r"[^/\x00-\x20\x7f\\]+")


def first_dot(name: str) -> tuple[str, str] | None:
    """Split at the first dot of the base name: the WebDataset convention."""
    dot = name.find(".", name.rfind("/") + 1)
    return _halves(name, dot)


def last_dot(name: str) -> tuple[str, str] | None:
    """Split at the last dot: for keys that contain dots and fields that do not."""
    return _halves(name, name.rfind(".", name.rfind("/") + 1))


def known_fields(fields: Iterable[str]) -> Splitter:
    """Make a rule that splits before the longest of the given fields: for dots in keys and in fields."""
    suffixes = sorted(("." + field.lower() for field in fields), key=len, reverse=True)

    def split(name: str) -> tuple[str, str] | None:
        lowered = name.lower()
        for suffix in suffixes:
            if lowered.endswith(suffix):
                return _halves(name, len(name) - len(suffix))
        return None

    return split


def _halves(name: str, dot: int) -> tuple[str, str] | None:
    key, field = name[:dot], name[dot + 1 :]
    if dot <= 0 or not field or key.endswith("/"):
        return None
    return key, field


def plain_key(key: str) -> str:
    """Return a key without the `./` that `tar cf x.tar .` puts before every name."""
    return key.removeprefix("./")


def is_metadata(name: bytes) -> bool:
    """Whether a member is about the shard and not of a sample: `__index__`, `__meta__/x.json`."""
    return name.startswith(b"__") and _METADATA.match(name) is not None


def is_reserved(field: str) -> bool:
    """Whether a field name is kept for what tarmac says about a sample, such as `__key__`."""
    return field.startswith("__") and _RESERVED.fullmatch(field) is not None


def check_key(key: object, split: Splitter = first_dot) -> str:
    """Return the key, or refuse one that would not read back."""
    if split is first_dot and type(key) is str and _PLAIN_KEY(key):
        return key
    if not isinstance(key, str):
        raise BadName(f"a key must be a string, got {key!r}.")
    if not _KEY.fullmatch(key):
        raise BadName(
            "keys must be relative paths without empty, . or .. parts, control characters or backslashes.",
            key=key,
        )
    if split(f"{key}.x") != (key, "x"):
        raise BadName(
            "the last part of the key has a dot, so it would be read back as another key.",
            key=key,
            hint='key.replace(".", "_"), or write and read with split=last_dot.',
        )
    if is_metadata(key.encode("utf-8", "surrogateescape")):
        raise BadName("names of the form __x__ are read as metadata, not as samples.", key=key)
    return key


def check_field(field: object, key: str, split: Splitter = first_dot) -> str:
    """Return the field name, or refuse one that would not read back."""
    if not isinstance(field, str) or not _FIELD.fullmatch(field):
        raise BadName(f"a field must be a name like jpg or seg.png, got {field!r}.", key=key)
    if split(f"k.{field}") != ("k", field):
        raise BadName(f"the field {field!r} would be read back under another name.", key=key)
    if is_reserved(field):
        raise BadName(f"the field {field!r} has a reserved name and would not be read back.", key=key)
    return field
