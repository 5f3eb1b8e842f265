"""Where the fields come from that are joined: other shards, or a table."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import xxhash

from tarmac.errors import BadName, CodecError, EncodeFailed, UrlError
from tarmac.exact.dataset import Dataset
from tarmac.runtime.types import Integers
from tarmac.samples.naming import check_field
from tarmac.storage import Cache, is_local, stat
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE, StorageOptions
from tarmac.tar.compression import format_of_name
from tarmac.tools.join.keys import database
from tarmac.tools.join.table import Table, is_table, json_bytes, kind_of
from tarmac.tools.output import fields_of
from tarmac.tools.select import Select
from tarmac.tools.sort.sources import disk_errors, gather, unpack

__all__ = ["open_source", "Source", "TableRows"]

Fields = dict[str, bytes]
MOST_COLUMNS = 1900
"""What a database can hold beside the number of the row."""


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
    """The rows of a table, encoded, in a database."""

    path: str
    size: int
    names: tuple[str, ...]
    """The fields, in the order of the columns of the database."""
    digest: str

    def keys(self) -> Iterator[str]:
        with database(self.path) as opened:
            for (key,) in opened.execute("SELECT key FROM rows ORDER BY number"):
                yield key.decode("utf-8", "surrogatepass")

    def fields(self, numbers: Integers) -> list[Fields]:
        found = dict(self._asked(numbers, "*"))
        return [
            {name: data for name, data in zip(self.names, found[number], strict=True) if data is not None}
            for number in numbers.tolist()
        ]

    def sizes(self, numbers: Integers) -> Integers:
        lengths = [f"coalesce(length(f{place}), 0)" for place in range(len(self.names))]
        found = dict(self._asked(numbers, "number, NULL" + "".join(f", {each}" for each in lengths)))
        return np.array([sum(found[number]) for number in numbers.tolist()], np.int64)

    def _asked(self, numbers: Integers, what: str) -> Iterator[tuple[int, tuple[Any, ...]]]:
        with database(self.path) as opened:
            query = f"SELECT {what} FROM rows WHERE number = ?"  # noqa: S608 - words of our own
            for number in numbers.tolist():
                _, _, *cells = opened.execute(query, (number,)).fetchone()
                yield number, tuple(cells)

    def fingerprint(self) -> str:
        return self.digest


def open_source(
    urls: Sequence[str],
    home: str,
    *,
    key: str = "",
    as_: Literal["fields", "json"] = "fields",
    prefix: str = "",
    storage: StorageOptions = DEFAULT_STORAGE,
    cache: Cache | None = None,
    show: bool | None = None,
) -> Source:
    """Make a source ready: index shards, or read a table into the directory `home`."""
    with disk_errors(home):
        os.makedirs(home, exist_ok=True)
    tables = [url for url in urls if is_table(url)]
    if not tables:
        if key or as_ != "fields":
            raise UrlError("--key and --as are for tables: csv, tsv, jsonl or parquet.", url=urls[0])
        found = gather(urls, home, Select(storage=storage), cache=cache, show=show)
        return ShardRows(found.dataset(), prefix, found.versions)
    if len(tables) != len(urls):
        raise UrlError("shards and tables cannot be joined together; one after the other.", url=tables[0])
    kinds = set(map(kind_of, urls))
    if len(kinds) > 1:
        raise UrlError(f"tables of different kinds ({', '.join(sorted(kinds))}).", url=tables[0])
    paths = [_near(url, f"{home}/tables/{number:06d}", storage) for number, url in enumerate(urls)]
    return _read(Table(paths, urls, key), urls, paths, f"{home}/rows.sqlite", as_, prefix)


def _near(url: str, path: str, storage: StorageOptions) -> str:
    """A table that is on this machine, and not compressed."""
    if is_local(url) and not format_of_name(url):
        stat(url, storage)  # which says well what is wrong with it
        return local_path(url)
    unpack(url, path, storage)
    return path


def _read(
    table: Table, urls: Sequence[str], paths: Sequence[str], path: str, as_: str, prefix: str
) -> TableRows:
    whole = as_ == "json"
    if not whole:
        table.look()
    names = ["json"] if whole else [column.field for column in table.columns.values()]
    names = [_checked(prefix + name, urls[0]) for name in names]
    if len(set(names)) != len(names) or len(names) > MOST_COLUMNS:
        what = "have the same name" if len(names) <= MOST_COLUMNS else "are too many"
        raise UrlError(f"the fields {what}: {', '.join(names)[:300]}.", url=urls[0], hint="--as json")
    columns = "".join(f", f{number} BLOB" for number in range(len(names)))
    count = 0
    with database(path) as opened:
        opened.execute(f"CREATE TABLE rows (number INTEGER PRIMARY KEY, key BLOB{columns})")
        opened.execute("BEGIN")
        marks = ", ?" * len(names)
        for key, row in table.whole() if whole else table.rows():
            try:
                if whole:
                    cells = [json_bytes(row)]
                else:
                    cells = [column.encode(row.get(name)) for name, column in table.columns.items()]  # type: ignore[misc]
            except (CodecError, ValueError, TypeError) as error:
                what = error.what if isinstance(error, CodecError) else str(error)
                hint = error.hint if isinstance(error, CodecError) else None
                raise EncodeFailed(what, url=urls[0], key=key, hint=hint) from None
            values = (count, key.encode("utf-8", "surrogatepass"), *cells)
            opened.execute(f"INSERT INTO rows VALUES (?, ?{marks})", values)  # noqa: S608 - only marks
            count += 1
        opened.execute("COMMIT")
    return TableRows(path, count, tuple(names), _digest(paths))


def _checked(name: str, url: str) -> str:
    try:
        return check_field(name, "")
    except BadName:
        hint = "another name for the column, or --as json."
        raise UrlError(f"a column cannot be a field called {name!r}.", url=url, hint=hint) from None


def _digest(paths: Sequence[str]) -> str:
    digest = xxhash.xxh3_128()
    for path in paths:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
