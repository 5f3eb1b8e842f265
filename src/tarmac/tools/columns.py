"""Turn the columns of a table into fields, by one rule for every verb.

A column becomes the field of the same name, unless it is renamed; dots reach into structs. Bytes and text are
stored as they are, but text for a binary field (`jpg`, `npy`) is base64. Numbers, booleans, lists and objects are
encoded by the codec of the field (`cls`, `npy`), or else as JSON. A date is text in ISO 8601. None and NaN make no
field. A struct of `bytes` and `path`, as Hugging Face stores images and sounds, is its bytes.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

from tarmac.codecs import encode_field, find_codec, find_encoder, is_binary, kind_of
from tarmac.errors import BadName, DecodeFailed, DuplicateField, EncodeFailed, MissingField, UsageError
from tarmac.samples.naming import check_field
from tarmac.storage import without_query
from tarmac.tools.tables import Row

_KEYS = ("__key__", "key")
_JSON_TYPES = (bool, int, float, list, dict)
_FILE = {"bytes", "path"}
"""The members of a struct that holds a file."""
_ANY_IMAGE = ("image", "img")
_GZIP = b"\x1f\x8b"
OWN = "*"
"""Stands for the extension of a file in the name of its field."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a table become fields."""

    key: str = ""
    """The column with the keys; by default `__key__` or `key`."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The columns to take, and the names of their fields; by default all columns."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Columns that name files, and the fields that the contents of those become; `*` is the file's extension."""

    def layout(
        self,
        names: Sequence[str],
        url: str,
        *,
        find_key: bool = False,
        typed: bool = True,
        exported: bool = False,
    ) -> Layout:
        """Apply the choice to a table.

        A column named `@jpg` holds names of files, unless `export` wrote the table. With `find_key`, for a table
        without files, a column of keys is required; otherwise rows are numbered without one. In a table that is not
        `typed`, all cells are text.
        """
        _check_distinct(names, url)
        for argument, named in (("key", [self.key]), ("columns", self.fields), ("files", self.files)):
            for name in filter(None, named):
                if name not in names and name.partition(".")[0] not in names:
                    hint = f"one of {', '.join(names)[:300]}."
                    raise UsageError(f"the table has no column {name!r}.", field=argument, url=url, hint=hint)
        key = self.key_column(names, url) if find_key else self.key or self._usual_key(names)
        marked = [] if find_key or exported else [name for name in names if name[:1] == "@" and name != key]
        files = {name: name[1:] for name in marked} | self._named_files()
        rest = {name: name for name in names if name not in files and name != key}
        selected = {name: new for name, new in self.fields.items() if name not in files}
        fields = selected if self.fields else rest
        self._check([*files.values(), *fields.values()], url)
        used = (key, *files, *fields)
        nested = frozenset(name for name in used if name and name not in names)
        return Layout(url, key, fields, files, nested, typed)

    def _usual_key(self, names: Sequence[str]) -> str:
        return next((name for name in _KEYS if name in names and name not in (*self.fields, *self.files)), "")

    def _named_files(self) -> dict[str, str]:
        """Return the columns of files; those without a name for the field take the extension of each file."""
        unnamed = [name for name, new in self.files.items() if name == new and not _names_format(new)]
        return dict(self.files) | {name: f"{name}.{OWN}" if len(unnamed) > 1 else OWN for name in unnamed}

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
                check_field(name.replace(OWN, "x"), "")
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
    nested: frozenset[str] = frozenset()
    """Those of the columns that are parts of structs, such as `image.bytes`."""
    typed: bool = True
    """Whether an empty cell is a value: in tables of text it is text, or a missing field of another kind."""

    @cached_property
    def _encoders(self) -> dict[str, Callable[[Any], bytes]]:
        return {}

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        return [*self.planned, *self.stored]

    @property
    def planned(self) -> list[str]:
        """The columns that a plan needs."""
        return self._tops([*filter(None, [self.key]), *self.files])

    @property
    def stored(self) -> list[str]:
        """The columns that hold fields."""
        return self._tops(self.fields)

    def _tops(self, columns: Iterable[str]) -> list[str]:
        return list(
            dict.fromkeys(name.partition(".")[0] if name in self.nested else name for name in columns)
        )

    def _cell(self, row: Row, column: str) -> Any:
        if column not in self.nested:
            return row.get(column)
        value: Any = row
        for part in column.split("."):
            if value is None:
                return None
            if not isinstance(value, Mapping) or (value is not row and part not in value):
                raise MissingField(f"the column {column!r} has no part {part!r}.", url=self.url)
            value = value.get(part)
        return value

    def key_of(self, row: Row, label: str) -> str | None:
        """Return the key of a row; None if rows are numbered."""
        if not self.key:
            return None
        return row_key({self.key: self._cell(row, self.key)}, self.key, label, self.url)

    def file_names(self, row: Row, label: str) -> dict[str, str]:
        """Return the names of the files of a row, by field; an empty cell names none."""
        names: dict[str, str] = {}
        for column, new in self.files.items():
            name = self._cell(row, column)
            if name is None or name == "":
                continue
            if not isinstance(name, str):
                what = f"{label}: expected a file name in the column {column!r}, got {name!r}."
                raise DecodeFailed(what, url=self.url)
            field = _own_name(new, name, hint=f"`files` {column}=FIELD.")
            if field in names or (OWN in new and field in map(str.lower, self.fields.values())):
                what = f"{label}: several columns would become the field {field!r}."
                raise DuplicateField(what, url=self.url, hint=f"`files` {column}={column}.{OWN}")
            names[field] = name
        return names

    def values(self, row: Row, key: str) -> dict[str, bytes]:
        """Return the other fields of a row as bytes."""
        values: dict[str, bytes] = {}
        for column, new in self.fields.items():
            value = self._cell(row, column)
            if value is None or (type(value) is float and math.isnan(value)):
                continue
            field = new
            if type(value) is dict and value.keys() == _FILE:
                if value["bytes"] is None and f"{column}.path" in self.files:
                    continue  # the file is read
                field, value = _file_field(column, new, value, key)
                if value is None:
                    continue
            elif not self.typed and value == "" and find_codec(new) is not None and kind_of(new) != "text":
                continue
            if field in values:
                raise DuplicateField(f"several columns would become the field {field!r}.", key=key)
            encode = self._encoders.get(field) or self._encoders.setdefault(field, _encoder(field, column))
            values[field] = encode_field(field, value, encode, key)
        return values


def _names_format(field: str) -> bool:
    """Return whether the name of a field says which format its bytes have; `image` and `img` do not."""
    return find_codec(field) is not None and field.lower().rpartition(".")[2] not in _ANY_IMAGE


def _own_name(name: str, path: str, *, hint: str) -> str:
    """Return the name of a field, with the extension of a file for `*`."""
    if OWN not in name:
        return name
    extension = os.path.splitext(without_query(path))[1][1:].lower()
    if not extension:
        raise BadName(f"the file {path!r} has no extension to name its field.", hint=hint)
    return name.replace(OWN, extension)


def _file_field(column: str, new: str, value: Mapping[str, Any], key: str) -> tuple[str, bytes | None]:
    """Return the field and the content of a struct of `bytes` and `path`."""
    content, path = value["bytes"], value["path"]
    if content is None:
        if path is None:
            return new, None
        what = f"the column {column!r} holds the path of a file instead of its bytes: {path!r}."
        raise MissingField(what, key=key, hint=f"tarmac pack --files {column}.path")
    extension = os.path.splitext(path)[1][1:].lower() if isinstance(path, str) else ""
    own = column == new and not _names_format(new) and extension not in ("", new.lower().rpartition(".")[2])
    name = f"{new}.{OWN}" if own else new
    return _own_name(name, str(path or ""), hint=f"`columns` {column}=FIELD."), content


def _encoder(name: str, column: str) -> Callable[[Any], bytes]:
    encode = find_encoder(name)
    codec = find_codec(name.lower().removesuffix(".gz"))
    kind = "text" if codec is None or codec.encode is None else codec.kind
    compressed, binary = name.lower().endswith(".gz"), is_binary(name)

    def encode_value(value: Any) -> bytes:
        if type(value) is str and binary:
            value = _from_base64(value, name, column)
        if type(value) is bytes and compressed and value.startswith(_GZIP):
            return value
        if type(value) is str or type(value) is bytes:
            return encode(value)
        if isinstance(value, _JSON_TYPES):
            if kind not in ("text", "json"):
                return encode(value)
            infinite = kind == "text" and isinstance(value, float) and math.isinf(value)
            return encode(json.dumps(value) if infinite else encode_json(value))
        return encode(_plain(value))

    return encode_value


def _from_base64(text: str, field: str, column: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise EncodeFailed(
            f"expected bytes or base64, got the text {text[:60]!r}.",
            hint=f"`columns` {column}=txt, if it is text; tarmac pack --files {column}={field}, if it names files.",
        ) from None


def encode_json(value: Any) -> bytes:
    """Return a value as JSON; dates in ISO 8601, and decimal numbers as text."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    try:
        return text.encode()
    except UnicodeEncodeError:  # lone surrogates, which JSON can only escape
        return json.dumps(value, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> str:
    """Return the text of a value that JSON has no type for."""
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    raise EncodeFailed(f"{type(value).__name__} cannot be converted to text.")
