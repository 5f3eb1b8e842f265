"""Write rows to Parquet files of an exact number of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tarmac.storage import StorageOptions, is_local, stat
from tarmac.storage.local import local_path
from tarmac.tools.export.destination import published_path

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP = 65_536
"""Rows in a row group: few, so that writing and reading need little memory."""
_LOOKED_AT = 8192


@dataclass(frozen=True)
class Written:
    """A file that was written."""

    url: str
    rows: int
    bytes: int


def write_files(
    batches: Iterator[pa.Table],
    schema: pa.Schema,
    name: Callable[[int], str],
    rows_per_file: int,
    storage: StorageOptions,
) -> list[Written]:
    """Write all rows; `name` returns the URL of a file by its number. Each file appears when it is complete."""
    import pyarrow.parquet as pq

    files: list[Written] = []
    rows = _Rows(batches)
    head = rows.take(min(ROW_GROUP, rows_per_file))
    with ThreadPoolExecutor(1, "tarmac-write") as thread:
        while head is not None:
            url, count = name(len(files)), 0
            options = {"use_dictionary": _repetitive(head)}
            with published_path(url, storage) as path, ExitStack() as stack:
                writer = pq.ParquetWriter(path, schema, **options)
                stack.push(partial(_close, writer, thread))
                while head is not None:
                    writing = thread.submit(writer.write_table, head, ROW_GROUP)
                    count += len(head)
                    # The engine makes the next rows while these are written.
                    head = rows.take(min(ROW_GROUP, rows_per_file - count)) if count < rows_per_file else None
                    writing.result()
            size = os.stat(local_path(url)).st_size if is_local(url) else stat(url, storage).size
            files.append(Written(url, count, size))
            head = rows.take(min(ROW_GROUP, rows_per_file))
    return files


def _close(writer: Any, thread: ThreadPoolExecutor, kind: type[BaseException] | None, *_: object) -> None:
    """Close a file. After an error, which a file that is half written must not hide, wait for its thread first."""
    if kind is None:
        writer.close()
        return
    thread.submit(int).result()
    with suppress(Exception):
        writer.close()


def _repetitive(table: pa.Table) -> list[str]:
    """Return the columns worth a dictionary: for links and captions, trying one takes longer than writing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    some = table.slice(0, _LOOKED_AT)
    names = [each.name for each in table.schema if not pa.types.is_nested(each.type)]
    return [name for name in names if 2 * pc.count_distinct(some[name]).as_py() <= len(some)]


class _Rows:
    """Take any number of rows from a stream of tables."""

    def __init__(self, batches: Iterator[pa.Table]) -> None:
        self._batches = batches
        self._held: list[Any] = []
        self._count = 0

    def take(self, rows: int) -> pa.Table | None:
        """Return this number of rows, fewer at the end, None after it."""
        import pyarrow as pa

        while self._count < rows and (batch := next(self._batches, None)) is not None:
            if len(batch):
                self._held.append(batch)
                self._count += len(batch)
        if not self._count:
            return None
        table = pa.concat_tables(self._held)
        taken = table.slice(0, rows).combine_chunks()
        rest = table.slice(rows)
        self._held, self._count = ([rest] if len(rest) else []), len(rest)
        return taken
