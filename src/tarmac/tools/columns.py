"""Turn the columns of a table into fields, by one rule for every verb.

A column becomes the field of the same name, unless it is renamed. Bytes and text are stored as they are.
Numbers, booleans, lists and objects are encoded by the codec of the field (`cls`, `npy`), or else as JSON. A
date is text in ISO 8601. None and NaN make no field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

from tarmac.codecs import encode_field, find_codec, find_encoder
from tarmac.errors import BadName, DecodeFailed, EncodeFailed, MissingField, UsageError
from tarmac.samples.naming import check_field
from tarmac.tools.tables import Row

_KEYS = ("key", "__key__")
_JSON_TYPES = (bool, int, float, list, dict)


@dataclass(frozen=True)
class Columns:
    """Which columns of a table become fields."""

    key: str = ""
    """The column with the keys."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The columns to take, and the names of their fields; by default all columns."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Columns that name files, and the fields that the contents of those become."""

    def layout(self, names: Sequence[str], url: str, *, find_key: bool = False) -> Layout:
        """Apply the choice to a table.

        A column named `@jpg` holds names of files. With `find_key`, for a table without files, the column of the
        keys is found by its name if none is given.
        """
        _check_distinct(names, url)
        for argument, named in (("key", [self.key]), ("columns", self.fields), ("files", self.files)):
            for name in filter(None, named):
                if name not in names:
                    hint = f"one of {', '.join(names)[:300]}."
                    raise UsageError(f"the table has no column {name!r}.", field=argument, url=url, hint=hint)
        key = self.key_column(names, url) if find_key else self.key
        marked = [] if find_key else [name for name in names if name[:1] == "@" and name != key]
        files = {name: name[1:] for name in marked} | dict(self.files)
        rest = {name: name for name in names if name not in files and name != key}
        selected = {name: new for name, new in self.fields.items() if name not in files}
        fields = selected if self.fields else rest
        self._check([*files.values(), *fields.values()], url)
        return Layout(url, key, fields, files)

    def key_column(self, names: Sequence[str], url: str) -> str:
        """Return the column of the keys: the given one, `key` or `__key__`."""
        _check_distinct(names, url)
        wanted = (self.key,) if self.key else _KEYS
        for name in wanted:
            if name in names:
                return name
        raise UsageError(
            f"the table has no column {' or '.join(wanted)}.",
            field="key",
            url=url,
            hint=f"one of {', '.join(names)[:300]}.",
        )

    @staticmethod
    def _check(fields: Sequence[str], url: str) -> None:
        hint = "`columns` selects and renames columns."
        if not fields:
            raise UsageError("no column is left to become a field.", url=url)
        for name in fields:
            try:
                check_field(name, "")
            except BadName as error:
                raise UsageError(f"invalid field name {name!r}: {error.what}", url=url, hint=hint) from None
        lowered = [name.lower() for name in fields]
        if len(set(lowered)) != len(fields):
            twice = ", ".join(name for name in fields if lowered.count(name.lower()) > 1)
            what = f"several columns would become the same field: {twice[:300]}. Case does not matter."
            raise UsageError(what, url=url, hint=hint)


def _check_distinct(names: Sequence[str], url: str) -> None:
    if len(set(names)) != len(names):
        raise UsageError("two columns of the table have the same name.", url=url)


def row_key(row: Row, column: str, label: str, url: str) -> str:
    """Return the key of a row; `label` names the row in errors."""
    key = row.get(column)
    if key is None or key == "":
        raise MissingField(f"{label} has no key in the column {column!r}.", url=url)
    if isinstance(key, bool | bytes | list | dict):
        what = f"{label}: expected text or a number in the key column {column!r}, got {key!r}."
        raise DecodeFailed(what, url=url)
    return key if isinstance(key, str) else str(key)


@dataclass(frozen=True)
class Layout:
    """What each column of one table becomes."""

    url: str
    key: str
    fields: Mapping[str, str]
    files: Mapping[str, str]

    @cached_property
    def _encoders(self) -> dict[str, Callable[[Any], bytes]]:
        return {name: _encoder(new) for name, new in self.fields.items()}

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return [*filter(None, [self.key]), *self.files, *self.fields]

    def key_of(self, row: Row, label: str) -> str | None:
        """Return the key of a row; None if rows are numbered."""
        return row_key(row, self.key, label, self.url) if self.key else None

    def file_names(self, row: Row, label: str) -> dict[str, str]:
        """Return the names of the files of a row, by field; an empty cell names none."""
        names = {}
        for column, new in self.files.items():
            name = row.get(column)
            if name is None or name == "":
                continue
            if not isinstance(name, str):
                what = f"{label}: expected a file name in the column {column!r}, got {name!r}."
                raise DecodeFailed(what, url=self.url)
            names[new] = name
        return names

    def values(self, row: Row, key: str) -> dict[str, bytes]:
        """Return the other fields of a row as bytes."""
        encoders = self._encoders
        return {
            new: encode_field(new, value, encoders[column], key)
            for column, new in self.fields.items()
            if (value := row.get(column)) is not None and not (type(value) is float and math.isnan(value))
        }


def _encoder(name: str) -> Callable[[Any], bytes]:
    encode = find_encoder(name)
    codec = find_codec(name.lower().removesuffix(".gz"))
    kind = "text" if codec is None or codec.encode is None else codec.kind

    def encode_value(value: Any) -> bytes:
        if type(value) is str or type(value) is bytes:
            return encode(value)
        if isinstance(value, _JSON_TYPES):
            if kind not in ("text", "json"):
                return encode(value)
            infinite = kind == "text" and isinstance(value, float) and math.isinf(value)
            return encode(json.dumps(value) if infinite else encode_json(value))
        return encode(_plain(value))

    return encode_value


def encode_json(value: Any) -> bytes:
    """Return a value as JSON; dates in ISO 8601, and decimal numbers as text."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> str:
    """Return the text of a value that JSON has no type for."""
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    raise EncodeFailed(f"{type(value).__name__} cannot be converted to text.")
