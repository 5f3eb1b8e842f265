"""Read the fields to join, from other shards or from a table."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import xxhash

from tarmac.codecs import encode_field
from tarmac.errors import BadName, TarmacError, UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.shardset import ShardSet
from tarmac.indexing.manifest import Inputs
from tarmac.runtime.types import Integers
from tarmac.samples.naming import check_field
from tarmac.tools.columns import Columns, encode_json, row_key
from tarmac.tools.gather import gather
from tarmac.tools.keystore import RowStore
from tarmac.tools.localcopy import ensure_local
from tarmac.tools.options import Access
from tarmac.tools.output import fields_of
from tarmac.tools.reading import Unpacked, shards_between
from tarmac.tools.select import Select
from tarmac.tools.tables import TABLES, Table, table_format
from tarmac.tools.workdir import disk_errors

Fields = dict[str, bytes]


@dataclass(frozen=True)
class ShardRows:
    """The samples of other shards, by number."""

    dataset: Dataset
    prefix: str = ""
    versions: str = ""
    """A hash that changes with the bytes of the shards, as earlier versions recorded it."""
    unpacked: Unpacked = field(default_factory=dict)

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
        return self.dataset.fingerprint

    def earlier_fingerprint(self) -> str:
        return f"{self.dataset.fingerprint} {self.versions}"

    def inputs(self) -> list[tuple[ShardSet, int]]:
        return shards_between(self.dataset, 0, len(self.dataset))


@dataclass(frozen=True)
class TableRows:
    """The rows of tables, encoded, on disk, by number."""

    path: str
    size: int
    digest: str
    """A hash of the tables."""

    def keys(self) -> Iterator[str]:
        with RowStore(self.path) as store:
            yield from store.keys()

    def fields(self, numbers: Integers) -> list[Fields]:
        with RowStore(self.path) as store:
            return store.fields(numbers.tolist())

    def sizes(self, numbers: Integers) -> Integers:
        with RowStore(self.path) as store:
            return np.array(store.sizes(numbers.tolist()), np.int64)

    unpacked: ClassVar[Unpacked] = {}

    def fingerprint(self) -> str:
        return self.digest

    def earlier_fingerprint(self) -> str:
        return self.digest

    def inputs(self) -> list[tuple[ShardSet, int]]:
        return []  # the fingerprint is a digest of their content


Source = ShardRows | TableRows
"""Rows with fields, by number."""


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
        return ShardRows(shards.dataset(), prefix, shards.versions, shards.unpacked)
    if len(set(formats)) > 1:
        names = ", ".join(sorted(name or "shards" for name in set(formats)))
        raise UsageError(f"expected tables of one format, got {names}.", url=urls[0])
    tables = [
        TABLES[str(formats[0])](
            url, ensure_local(url, f"{directory}/tables", access.storage, allow_exec=access.allow_exec)
        )
        for url in urls
    ]
    path = f"{directory}/rows.sqlite"
    with RowStore(path) as store:
        encoded = (_rows(table, columns, prefix, whole=rows == "json") for table in tables)
        count = store.fill(itertools.chain.from_iterable(encoded))
    return TableRows(path, count, _digest(tables))


def _rows(table: Table, columns: Columns, prefix: str, *, whole: bool) -> Iterator[tuple[str, Fields]]:
    """Yield the key and the fields of each row; with `whole`, the row is one field of JSON."""
    layout = None if whole else columns.layout(table.names, table.url, find_key=True, typed=table.typed)
    key_column = columns.key_column(table.names, table.url)
    names = ["json"] if layout is None else layout.fields.values()
    prefixed = {name: _checked(f"{prefix}{name}".lower()) for name in names}
    for position, row in table.rows(None if layout is None else layout.columns):
        key = row_key(row, key_column, table.label(position), table.url)
        try:
            if layout is None:
                fields = {"json": encode_field(prefixed["json"], row, encode_json, key)}
            else:
                fields = layout.values(row, key)
        except TarmacError as error:
            raise error.at(url=table.url) from error.__cause__
        for name in fields.keys() - prefixed.keys():  # after a file in the row
            prefixed[name] = _checked(f"{prefix}{name}".lower())
        yield key, {prefixed[name]: data for name, data in fields.items()}


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
