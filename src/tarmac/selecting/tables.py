"""Find tables, and bring each into a form that every engine reads: a local Parquet file.

Local Parquet files are read as they are. Remote ones are copied with the columns that are needed. Tables of text are
converted (texttables.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tarmac.errors import DecodeFailed, NotFound, UnsupportedScheme, UrlError, UsageError
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.selecting.dirt import Dirt, repaired
from tarmac.selecting.ranged import RangedFile
from tarmac.selecting.schemas import merged_schema
from tarmac.selecting.texttables import Kinds, TextTable, convert_csv, convert_json, convert_types
from tarmac.storage import StorageOptions, is_local, stat, without_query
from tarmac.storage.local import local_path
from tarmac.storage.urls import Shards
from tarmac.tar.compression import format_of_name
from tarmac.tools.localcopy import decompressed
from tarmac.tools.tablelists import is_in, list_tables
from tarmac.tools.tables import table_format

if TYPE_CHECKING:
    import pyarrow as pa

Needed = Callable[[Sequence[str]], Sequence[str]]
"""Which of the columns of a table are needed."""
_FORMATS = (".parquet", ".csv", ".tsv", ".jsonl")


@dataclass(frozen=True)
class Table:
    """A table as engines read it."""

    url: str
    path: str
    """A local Parquet file."""
    schema: pa.Schema
    rows: int
    names: tuple[str, ...]
    """All columns; a copy has fewer."""


@dataclass(frozen=True)
class Tables:
    """Tables that have the same columns."""

    tables: tuple[Table, ...]
    schema: pa.Schema
    """The columns that all of them have, with types for all values."""

    @property
    def names(self) -> list[str]:
        """All columns, also those that are not needed."""
        return list(dict.fromkeys(name for table in self.tables for name in table.names))

    @property
    def paths(self) -> list[str]:
        """The local files."""
        return [table.path for table in self.tables]


def find_tables(
    sources: Shards,
    storage: StorageOptions,
    limits: Limits = DEFAULT_LIMITS,
    *,
    field: str = "sources",
    output: str | None = None,
) -> list[str]:
    """Return the URLs of all tables; `output` is the directory of the selected rows."""
    urls = list_tables(sources, storage, limits, field=field, output=output)
    for url in urls:
        if table_format(url) is None:
            if is_local(url) and not os.path.exists(local_path(url)):
                raise NotFound("no such file or directory.", url=url)
            what = (
                f"expected a table with the extension {', '.join(_FORMATS)}, or one of them with .gz or .zst."
            )
            raise UrlError(what, url=url, hint="tarmac show, for shards.")
        if output is not None and is_in(url, output):
            what = "the output directory contains a table that is read, which the selection would replace."
            raise UsageError(what, field="output", url=url)
    return urls


def open_tables(
    urls: Sequence[str],
    directory: str,
    storage: StorageOptions,
    needed: Needed,
    dirt: Dirt,
    *,
    repair: bool = False,
) -> Tables:
    """Bring tables into one form; working files go to `directory`.

    `needed` returns the columns that are needed of those that a table has. `repair` copies all tables, with text that
    is valid UTF-8.
    """
    opened: list[Table | TextTable | None] = []
    for number, url in enumerate(urls):
        path = os.path.join(directory, f"{number:06d}")
        if _size(url, storage) == 0:
            dirt.empty_tables += 1
            opened.append(None)
        elif table_format(url) == "parquet":
            opened.append(_open_parquet(url, path, storage, needed, dirt, repair=repair))
        else:
            opened.append(_open_text(url, path, storage, dirt))
    kinds: Kinds = {}
    for each in opened:
        for name, some in each.kinds.items() if isinstance(each, TextTable) else ():
            kinds.setdefault(name, set()).update(some)
    tables = []
    for url, each in zip(urls, opened, strict=True):
        if isinstance(each, TextTable):
            convert_types(each, kinds, f"{each.path}.parquet")
            os.unlink(each.path)
            tables.append(_described(url, f"{each.path}.parquet"))
        elif each is not None:
            tables.append(each)
    if not tables:
        raise DecodeFailed("all tables are empty: they have not even columns.", url=urls[0])
    return Tables(tuple(tables), merged_schema([(each.url, each.schema) for each in tables], needed))


def _size(url: str, storage: StorageOptions) -> int:
    return (
        os.stat(local_path(url)).st_size
        if is_local(url) and os.path.exists(local_path(url))
        else stat(url, storage).size
    )


def _open_text(url: str, path: str, storage: StorageOptions, dirt: Dirt) -> TextTable | None:
    compression, kind = format_of_name(without_query(url)), table_format(url)
    chunks = decompressed(url, storage, compression=compression)
    first = next((chunk for chunk in chunks if chunk), b"")
    if not first:
        dirt.empty_tables += 1
        return None
    chunks = _chained(first, chunks)
    if kind == "jsonl":
        return convert_json(chunks, path, url=url, dirt=dirt)
    return convert_csv(chunks, path, url=url, delimiter="," if kind == "csv" else "\t", dirt=dirt)


def _chained(first: bytes, others: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from others


def _open_parquet(
    url: str, path: str, storage: StorageOptions, needed: Needed, dirt: Dirt, *, repair: bool
) -> Table:
    import pyarrow as pa

    try:
        if format_of_name(without_query(url)):
            with open(path, "wb") as copy:
                for chunk in decompressed(url, storage, compression=format_of_name(without_query(url))):
                    copy.write(chunk)
            table = _described(url, path)
        elif is_local(url):
            table = _described(url, os.path.abspath(local_path(url)))
        else:
            return _copied(url, _ranged(url, path, storage), f"{path}.parquet", needed, dirt)
        if repair:
            return _copied(url, table.path, f"{path}.parquet", needed, dirt)
    except (pa.ArrowException, OSError) as error:
        if hasattr(error, "hint"):  # one of our own
            raise
        raise DecodeFailed(f"invalid Parquet file: {error}.", url=url) from None
    return table


def _ranged(url: str, path: str, storage: StorageOptions) -> Any:
    """Return a remote file; a copy of it, if its store has no ranges."""
    file = RangedFile(url, storage)
    try:
        file.read(1)
        file.seek(0)
    except UnsupportedScheme:
        with open(path, "wb") as copy:
            copy.writelines(decompressed(url, storage))
        return path
    return file


def _copied(url: str, source: Any, path: str, needed: Needed, dirt: Dirt) -> Table:
    """Copy the columns that are needed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(source, pre_buffer=True) as file:
        all_names = file.schema_arrow.names
        names = list(needed(all_names))
        schema = pa.schema([file.schema_arrow.field(name) for name in names])
        writer = None
        for batch in file.iter_batches(columns=names):
            clean = repaired(batch, dirt)
            writer = writer or pq.ParquetWriter(path, clean.schema)
            writer.write_batch(clean)
        with writer or pq.ParquetWriter(path, schema):
            pass
    return _described(url, path, all_names)


def _described(url: str, path: str, names: Sequence[str] = ()) -> Table:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        return Table(url, path, schema, file.metadata.num_rows, tuple(names or schema.names))
