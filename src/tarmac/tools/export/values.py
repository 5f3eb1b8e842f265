"""What a field holds, for formats that tell text from numbers and both from bytes.

The extension decides: `cls`, `count`, `id` and their like are whole numbers, `txt`, `md`, `html` and their
like are text, `json` is JSON, everything else is bytes. `--as caption=text,score=json` says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NoReturn, cast, get_args

from tarmac.codecs import find_codec, kind_of
from tarmac.errors import BadName, DecodeFailed, TarmacError, UrlError
from tarmac.samples.grouping import Sample
from tarmac.tools.select import FieldRule

__all__ = ["Json", "Kind", "Kinds", "parse_kinds", "text_key", "value_of"]

Kind = Literal["int", "text", "json", "bytes"]


class Json(str):
    """The text of a JSON value, in one line."""

    __slots__ = ()

    def value(self) -> Any:
        """The value itself."""
        return json.loads(self)


@dataclass(frozen=True)
class Kinds:
    """What each field holds: by its extension, unless something else was said of its name."""

    named: tuple[tuple[str, Kind], ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    """New names of fields, and old ones, which say more where the new one says nothing."""

    @cached_property
    def _named(self) -> dict[str, Kind]:
        return dict(self.named)

    @cached_property
    def _renamed(self) -> dict[str, str]:
        return dict(self.renamed)

    def of(self, field: str) -> Kind:
        """What a field of this name holds."""
        kind = kind_of(self.original(field))
        return self._named.get(field) or (cast("Kind", kind) if kind in get_args(Kind) else "bytes")

    def is_image(self, field: str) -> bool:
        """Return whether a field holds images."""
        return kind_of(self.original(field)) == "image"

    def original(self, field: str) -> str:
        """Return the field, or its name before it was renamed if only that has a known extension."""
        return field if find_codec(field) is not None else self._renamed.get(field, field)

    def after(self, rule: FieldRule | None) -> Kinds:
        """The same for fields that get the names that a rule gives them."""
        kept = () if rule is None else rule.kept
        return replace(self, renamed=tuple((new, old[0]) for new, old in kept))


def parse_kinds(text: str) -> Kinds:
    """Understand `--as caption=text,score=json`."""
    named: dict[str, Kind] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        field, _, kind = item.rpartition("=")
        if not field or "=" in field or kind not in get_args(Kind):
            raise UrlError(f"--as: {item!r} is no field and what it holds; caption=text and x=bytes are.")
        named[field.strip()] = cast("Kind", kind)
    return Kinds(tuple(sorted(named.items())))


def value_of(kinds: Kinds, field: str, data: bytes) -> Any:
    """A field as a whole number, text, JSON text or bytes; an error says which field is none of that."""
    return _READERS[kinds.of(field)](field, data)


def _whole_number(field: str, data: bytes) -> int:
    try:
        number = int(data)
    except ValueError:
        raise _not(field, "a whole number", data) from None
    if not -(1 << 63) <= number < 1 << 63:
        raise _not(field, "a whole number of 64 bits", data)
    return number


def _text(field: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _not(field, "text in UTF-8", data) from None


def _json(field: str, data: bytes) -> Json:
    """The JSON as it is written, so that no digit and no doubled name is lost, but in one line."""
    try:
        text = data.decode("utf-8-sig")
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise _not(field, "JSON", data) from None
    # Inside a string a line break is always escaped, so those that are there mean nothing.
    return Json(text.translate(_ONE_LINE).strip())


_ONE_LINE = {ord("\n"): " ", ord("\r"): " ", ord("\t"): " "}


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _bytes(field: str, data: bytes) -> bytes:
    del field
    return bytes(data)


_READERS: dict[Kind, Callable[[str, bytes], Any]] = {
    "int": _whole_number,
    "text": _text,
    "json": _json,
    "bytes": _bytes,
}


def _not(field: str, what: str, data: bytes) -> TarmacError:
    start = bytes(data[:40])
    return DecodeFailed(
        f'the field "{field}" is not {what}: {start!r}{"…" if len(data) > 40 else ""}.',
        hint=f"--as {field}=text or {field}=bytes takes it as it is, --fields -{field} leaves it out.",
    )


def text_key(sample: Sample) -> str:
    """The key of a sample, where it has to be text."""
    key: str = sample["__key__"]
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            raise BadName(
                "the key is not UTF-8, so it is no text.",
                hint="--to dir, lmdb or tfrecord keeps the bytes; tarmac copy --rekey makes other keys.",
            ) from None
    return key
