"""Read the fields to join, from other shards or from a table."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import xxhash

from tarmac.codecs import encode_field
from tarmac.errors import BadName, TarmacError, UsageError
from tarmac.exact.dataset import Dataset
from tarmac.runtime.types import Integers
from tarmac.samples.naming import check_field
from tarmac.tools.columns import Columns, encode_json, row_key
from tarmac.tools.gather import gather
from tarmac.tools.keystore import RowStore
from tarmac.tools.localcopy import ensure_local
from tarmac.tools.options import Access, Inputs
from tarmac.tools.output import fields_of
from tarmac.tools.select import Select
from tarmac.tools.tables import TABLES, Table, table_format
from tarmac.tools.workdir import disk_errors

Fields = dict[str, bytes]


class Source(Protocol):
    """Rows with fields, by number. It must pickle."""

    @property
    def size(self) -> int:
        """Return the number of rows."""

    def keys(self) -> Iterator[str]:
        """Yield the key of each row."""

    def fields(self, numbers: Integers) -> list[Fields]:
        """Return the fields of these rows."""

    def sizes(self, numbers: Integers) -> Integers:
        """Return the number of bytes of each of these rows."""

    def fingerprint(self) -> str:
        """Return a text that changes with the rows."""


@dataclass(frozen=True)
class ShardRows:
    """The samples of other shards."""

    dataset: Dataset
    prefix: str = ""
    versions: str = ""
    """A hash that changes with the bytes of the shards."""

    @property
    def size(self) -> int:
        return len(self.dataset)

    def keys(self) -> Iterator[str]:
        return self.dataset.keys()

    def fields(self, numbers: Integers) -> list[Fields]:
        samples = self.dataset.batch(numbers)
        return [{self.prefix + name: data for name, data in fields_of(one).items()} for one in samples]

    def sizes(self, numbers: Integers) -> Integers:
        return self.dataset.sizes(numbers)

    def fingerprint(self) -> str:
        return f"{self.dataset.fingerprint} {self.versions}"


@dataclass(frozen=True)
class TableRows:
    """The rows of a table, encoded, on disk."""

    path: str
    size: int
    digest: str

    def keys(self) -> Iterator[str]:
        with RowStore(self.path) as store:
            yield from store.keys()

    def fields(self, numbers: Integers) -> list[Fields]:
        with RowStore(self.path) as store:
            return store.fields(numbers.tolist())

    def sizes(self, numbers: Integers) -> Integers:
        with RowStore(self.path) as store:
            return np.array(store.sizes(numbers.tolist()), np.int64)

    def fingerprint(self) -> str:
        return self.digest


def open_source(
    inputs: Inputs,
    directory: str,
    columns: Columns,
    rows: Literal["fields", "json"],
    prefix: str,
    access: Access,
    *,
    progress: bool | None = None,
) -> Source:
    """Index shards, or read tables into the directory."""
    urls = inputs.urls
    with disk_errors(directory):
        os.makedirs(f"{directory}/tables", exist_ok=True)
    formats = [table_format(url) for url in urls]
    if not any(formats):
        if columns != Columns() or rows != "fields":
            raise UsageError("`key`, `columns` and `rows` apply to tables only.", url=urls[0])
        shards = gather(inputs, directory, Select(), access, progress=progress)
        return ShardRows(shards.dataset(), prefix, shards.versions)
    if len(set(formats)) > 1:
        names = ", ".join(sorted(name or "shards" for name in set(formats)))
        raise UsageError(f"expected tables of one format, got {names}.", url=urls[0])
    tables = [
        TABLES[str(formats[0])](
            url, ensure_local(url, f"{directory}/tables", access.storage, allow_exec=access.allow_exec)
        )
        for url in urls
    ]
    encode = _whole_rows if rows == "json" else _rows
    path = f"{directory}/rows.sqlite"
    with RowStore(path) as store:
        count = store.fill(itertools.chain.from_iterable(encode(table, columns, prefix) for table in tables))
    return TableRows(path, count, _digest(tables))


def _rows(table: Table, columns: Columns, prefix: str) -> Iterator[tuple[str, Fields]]:
    layout = columns.layout(table.names, table.url, find_key=True)
    names = {name: _checked(f"{prefix}{name}".lower()) for name in layout.fields.values()}
    for position, row in table.rows(layout.columns):
        key = str(layout.key_of(row, table.label(position)))
        try:
            fields = layout.values(row, key)
        except TarmacError as error:
            raise error.at(url=table.url) from error.__cause__
        yield key, {names[name]: data for name, data in fields.items()}


def _whole_rows(table: Table, columns: Columns, prefix: str) -> Iterator[tuple[str, Fields]]:
    """Yield each row as one field of JSON."""
    column = columns.key_column(table.names, table.url)
    name = _checked(f"{prefix}json".lower())
    for position, row in table.rows():
        key = row_key(row, column, table.label(position), table.url)
        try:
            yield key, {name: encode_field(name, row, encode_json, key)}
        except TarmacError as error:
            raise error.at(url=table.url) from error.__cause__


def _checked(name: str) -> str:
    try:
        return check_field(name, "")
    except BadName as error:
        raise UsageError(error.what, field="prefix") from None


def _digest(tables: Sequence[Table]) -> str:
    digest = xxhash.xxh3_128(b"2")  # 1 named fields after the types of their values
    for table in tables:
        with open(table.local.path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
