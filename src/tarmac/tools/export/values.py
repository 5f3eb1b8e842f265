"""Values of fields, for formats that distinguish text, integers, JSON and bytes.

The codec of the extension determines the type: `cls` holds integers, `txt` text, `json` JSON. All others are bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NoReturn, cast, get_args

from tarmac.codecs import find_codec, kind_of
from tarmac.errors import BadName, DecodeFailed, TarmacError, UsageError
from tarmac.samples.grouping import Sample
from tarmac.tools.select import FieldRule

Kind = Literal["int", "text", "json", "bytes"]


class Json(str):
    """The text of a JSON value, in one line."""

    __slots__ = ()

    def value(self) -> Any:
        """Return the value."""
        return json.loads(self)


@dataclass(frozen=True)
class Kinds:
    """What each field holds: as given for its name, or by its extension."""

    given: Mapping[str, Kind] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    """New and old names of renamed fields: the old extension counts where the new one is unknown."""

    def __post_init__(self) -> None:
        for name, kind in self.given.items():
            if kind not in get_args(Kind):
                expected = ", ".join(get_args(Kind))
                raise UsageError(f"{name}: expected one of {expected}, got {kind!r}.", field="kinds")

    @cached_property
    def _known(self) -> dict[str, Kind]:
        """The kinds of the fields seen so far."""
        return dict(self.given)

    def of(self, field: str) -> Kind:
        """Return what a field holds."""
        kind = self._known.get(field)
        if kind is None:
            by_codec = kind_of(self.original(field))
            kind = self._known[field] = cast("Kind", by_codec) if by_codec in get_args(Kind) else "bytes"
        return kind

    def is_image(self, field: str) -> bool:
        """Return whether a field holds images."""
        return kind_of(self.original(field)) == "image"

    def original(self, field: str) -> str:
        """Return the field, or its name before it was renamed if only that has a known extension."""
        return field if find_codec(field) is not None else self.renamed.get(field, field)

    def after(self, rule: FieldRule | None) -> Kinds:
        """Return the same for fields that a rule renames."""
        kept = () if rule is None else rule.kept
        return replace(self, renamed={new: old[0] for new, old in kept})


def value_of(kinds: Kinds, field: str, data: bytes) -> Any:
    """Return a field as an integer, text, JSON text or bytes; an error names the field."""
    kind = kinds.of(field)
    try:
        value = _READERS[kind](data)
    except (ValueError, RecursionError):
        raise _not(field, _NAMES[kind], data) from None
    if kind == "int" and not -(1 << 63) <= value < 1 << 63:
        raise _not(field, "a 64-bit integer", data)
    return value


def _json(data: bytes) -> Json:
    """Return the JSON as written, so that no digit and no repeated name is lost, but in one line."""
    text = data.decode("utf-8-sig")
    json.loads(text, parse_constant=_reject_constant)
    # Line breaks inside strings are always escaped, so these are insignificant.
    return Json(text.translate(_ONE_LINE).strip())


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_ONE_LINE = {ord("\n"): " ", ord("\r"): " ", ord("\t"): " "}
_READERS: dict[Kind, Callable[[bytes], Any]] = {
    "int": int,
    "text": bytes.decode,
    "json": _json,
    "bytes": bytes,
}
_NAMES = {"int": "an integer", "text": "UTF-8 text", "json": "JSON"}


def _not(field: str, what: str, data: bytes) -> TarmacError:
    start = bytes(data[:40])
    what = f'the field "{field}" is not {what}: {start!r}{"…" if len(data) > 40 else ""}.'
    try:
        data.decode()
    except UnicodeDecodeError:
        hint = f"`drop_fields` to drop it, or `kinds` {field}=bytes in formats other than tsv and csv."
    else:
        hint = f"`kinds` {field}=text to export it as it is, or `drop_fields` to drop it."
    return DecodeFailed(what, hint=hint)


def text_key(sample: Sample) -> str:
    """Return the key of a sample as valid UTF-8."""
    key: str = sample["__key__"]
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            raise BadName(
                "the key is not valid UTF-8.",
                hint="`format` dir, lmdb or tfrecord, which keep the bytes; or tarmac copy --rekey '{i:09d}'.",
            ) from None
    return key
