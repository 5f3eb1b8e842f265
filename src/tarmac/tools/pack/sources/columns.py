"""Columns to fields: which are keys, which are values, and which are names of files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tarmac.codecs import Encoder, encode_field, find_codec, find_encoder
from tarmac.errors import MissingField, UrlError
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.pack.sources.files import file_at
from tarmac.tools.pack.sources.near import resolved
from tarmac.tools.pack.sources.source import File

__all__ = ["Columns", "Layout", "parse_pairs"]

_IN_JSON = (bool, int, float, list, dict)
"""What a text may be made of: `3`, `[1, 2]`."""


def parse_pairs(text: str, flag: str) -> dict[str, str]:
    """Understand `img=jpg,mask=png`: what a column is called, and its field."""
    pairs: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        column, equal, name = item.partition("=")
        if not column.strip() or (equal and not name.strip()):
            raise UrlError(f"{flag}: {item!r} is not of the form COLUMN=FIELD.")
        if column.strip() in pairs:
            raise UrlError(f"{flag} names {column.strip()!r} twice.")
        pairs[column.strip()] = name.strip() if equal else column.strip()
    return pairs


@dataclass(frozen=True)
class Columns:
    """What the user says about the columns of a table."""

    key: str = ""
    """The column of keys; without one, rows are numbered."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Columns that hold names of files, and the fields that these become; `@jpg` is one, too."""
    plain: Mapping[str, str] = field(default_factory=dict)
    """The other columns that are wanted, and their fields; none named means all, under their own names."""
    base: str = ""
    """What relative names of files are relative to; else to the table."""
    sized: bool = False
    """Whether sizes are needed when planning."""
    storage: StorageOptions = DEFAULT_STORAGE

    def layout(self, names: Sequence[str], url: str) -> Layout:
        """Say what each column becomes."""
        for name in (*filter(None, [self.key]), *self.files, *self.plain):
            if name not in names:
                hint = f"its columns are {', '.join(names)[:300]}."
                raise UrlError(f"the table has no column {name!r}.", url=url, hint=hint)
        if len(set(names)) != len(names):
            raise UrlError("two columns of the table have the same name.", url=url)
        files = {name: name[1:] for name in names if name[0:1] == "@" and name != self.key} | dict(self.files)
        rest = {name: name for name in names if name not in files and name != self.key}
        plain = {name: new for name, new in self.plain.items() if name not in files} if self.plain else rest
        fields = [*files.values(), *plain.values()]
        if len({name.lower() for name in fields}) != len(fields):
            raise UrlError("two columns would become the same field.", url=url, hint="--columns a=x,b=y.")
        if not fields:
            raise UrlError("no column is left to become a field.", url=url)
        return Layout(self, url, files, plain, {name: _encoder(new) for name, new in plain.items()})


def _encoder(field: str) -> Encoder:
    """How a value becomes bytes: as the field asks for, or as JSON writes it if it asks for nothing."""
    codec = find_codec(field.lower().removesuffix(".gz"))
    known = find_encoder(field)
    by_codec = codec is not None and codec.encode is not None and codec.kind != "text"
    return known if by_codec else partial(_encoded, known)


def _encoded(known: Encoder, value: Any) -> bytes:
    return known(json.dumps(value, ensure_ascii=False) if isinstance(value, _IN_JSON) else value)


@dataclass(frozen=True)
class Layout:
    """What each column of one table becomes."""

    columns: Columns
    url: str
    files: Mapping[str, str]
    plain: Mapping[str, str]
    encoders: Mapping[str, Encoder]

    @property
    def wanted(self) -> list[str]:
        """The columns that are read."""
        return [*filter(None, [self.columns.key]), *self.files, *self.plain]

    def key(self, row: Mapping[str, Any], number: int) -> str | None:
        """The key of a row; None if rows are numbered."""
        if not self.columns.key:
            return None
        value = row.get(self.columns.key)
        if value is None or value == "":
            raise MissingField(f"row {number} has no key in the column {self.columns.key!r}.", url=self.url)
        return value if isinstance(value, str) else str(value)

    def files_of(self, row: Mapping[str, Any], number: int) -> tuple[File, ...]:
        """The files that a row names; an empty name is no file."""
        found = []
        for column, name in self.files.items():
            value = row.get(column)
            if value is None or value == "":
                continue
            if not isinstance(value, str):
                what = f"row {number}: {column!r} should name a file, and is {type(value).__name__}."
                raise UrlError(what, url=self.url)
            url = resolved(value, self.columns.base, self.url)
            found.append(file_at(name, url, self.columns.storage, self.columns.sized))
        return tuple(found)

    def values(self, row: Mapping[str, Any], key: str) -> dict[str, bytes]:
        """The other fields of a row as bytes; nothing is made of an empty value (None)."""
        return {
            name: encode_field(name, row[column], self.encoders[column], key)
            for column, name in self.plain.items()
            if row.get(column) is not None
        }

    def size(self, row: Mapping[str, Any], files: Sequence[File], number: int) -> int:
        """The payload of a row, if that matters."""
        if not self.columns.sized:
            return 0
        of_values = sum(map(len, self.values(row, f"row {number}").values()))
        return of_values + sum(max(file[2], 0) for file in files)
