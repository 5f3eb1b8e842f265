"""Where the fields come from that are joined: other shards, or a table."""

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
from tarmac.storage import Cache
from tarmac.storage.types import DEFAULT_STORAGE, StorageOptions
from tarmac.tools.columns import Columns, encode_json, row_key
from tarmac.tools.keystore import RowStore
from tarmac.tools.localcopy import ensure_local
from tarmac.tools.output import fields_of
from tarmac.tools.select import Select
from tarmac.tools.sort.sources import disk_errors, gather
from tarmac.tools.tables import TABLES, Table, table_format

__all__ = ["open_source", "Source", "TableRows"]

Fields = dict[str, bytes]


class Source(Protocol):
    """Rows with fields, by number. It must pickle."""

    @property
    def size(self) -> int:
        """How many rows there are."""

    def keys(self) -> Iterator[str]:
        """The key of each row."""

    def fields(self, numbers: Integers) -> list[Fields]:
        """The fields of some rows."""

    def sizes(self, numbers: Integers) -> Integers:
        """How many bytes each of some rows has."""

    def fingerprint(self) -> str:
        """What changes when the rows do."""


@dataclass(frozen=True)
class ShardRows:
    """The samples of other shards."""

    dataset: Dataset
    prefix: str = ""
    versions: str = ""
    """What changes when the bytes of a shard do; an index of other bytes in the same places is the same."""

    @property
    def size(self) -> int:
        return len(self.dataset)

    def keys(self) -> Iterator[str]:
        return self.dataset.keys()

    def fields(self, numbers: Integers) -> list[Fields]:
        samples = self.dataset.batch(numbers)
        return [{self.prefix + name: data for name, data in fields_of(one).items()} for one in samples]

    def sizes(self, numbers: Integers) -> Integers:
        return self.dataset.sizes_of(numbers)

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
    urls: Sequence[str],
    home: str,
    *,
    columns: Columns | None = None,
    as_: Literal["fields", "json"] = "fields",
    prefix: str = "",
    storage: StorageOptions = DEFAULT_STORAGE,
    cache: Cache | None = None,
    show: bool | None = None,
) -> Source:
    """Index shards, or read tables into the directory `home`."""
    columns = columns or Columns()
    with disk_errors(home):
        os.makedirs(home, exist_ok=True)
    formats = [table_format(url) for url in urls]
    if not any(formats):
        if columns != Columns() or as_ != "fields":
            raise UsageError("columns can be chosen only from tables.", url=urls[0])
        found = gather(urls, home, Select(storage=storage), cache=cache, show=show)
        return ShardRows(found.dataset(), prefix, found.versions)
    if len(set(formats)) > 1:
        names = ", ".join(sorted(name or "shards" for name in set(formats)))
        raise UsageError(f"expected tables of one format, got {names}.", url=urls[0])
    os.makedirs(f"{home}/tables", exist_ok=True)
    tables = [
        TABLES[str(formats[0])](url, ensure_local(url, f"{home}/tables", storage, allow_exec=True))
        for url in urls
    ]
    encode = _whole_rows if as_ == "json" else _rows
    with RowStore(f"{home}/rows.sqlite") as store:
        rows = itertools.chain.from_iterable(encode(table, columns, prefix) for table in tables)
        count = store.fill(rows)
    return TableRows(f"{home}/rows.sqlite", count, _digest(tables))


def _rows(table: Table, columns: Columns, prefix: str) -> Iterator[tuple[str, Fields]]:
    layout = columns.layout(table.names(), table.url, find_key=True)
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
    column = columns.key_column(table.names(), table.url)
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
