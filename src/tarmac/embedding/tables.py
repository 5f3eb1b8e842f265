"""Tables beside the vectors of a shard: Parquet files with a row for each vector."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tarmac.errors import IndexDamaged, NotFound
from tarmac.indexing.promote import common_types, promote
from tarmac.runtime.types import Integers
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.export.destination import published_path

AGAIN = "tarmac embed, which makes missing parts again."
_ORIGIN = b"tarmac-origin"


@dataclass(frozen=True)
class Table:
    """A table in a local file, which is opened when it is needed."""

    path: str
    hint: str = AGAIN

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open the table while the block runs: a thousand open files are too many for a process."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            # Closed here, since errors of the library keep files that it opens itself open.
            with (
                pa.memory_map(self.path) as file,
                pq.ParquetFile(file, metadata=self.__dict__.get("_facts")) as table,
            ):
                yield table
        except FileNotFoundError:
            raise NotFound("no such file.", url=self.path, hint=self.hint) from None
        except (pa.ArrowException, OSError) as error:
            what = f"this is not a table of metadata: {str(error)[:200]}."
            raise IndexDamaged(what, url=self.path, hint=self.hint) from None

    @cached_property
    def _facts(self) -> Any:
        """What the table says of its row groups and columns."""
        with self._opened() as table:
            return table.metadata

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._facts.schema.to_arrow_schema().names)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self._facts.num_rows)

    @property
    def origin(self) -> str:
        """Return what `write_table` was told of the vectors of the rows."""
        return str((self._facts.metadata or {}).get(_ORIGIN, b"").decode())

    def read(self, columns: Sequence[str]) -> Any:
        """Return these columns as an Arrow table."""
        with self._opened() as table:
            return table.read(list(columns))

    def read_rows(self, rows: Integers, columns: Sequence[str]) -> Any:
        """Return columns of some rows, reading only the row groups that they are in."""
        import pyarrow as pa

        groups = self._facts
        sizes = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
        ends = np.cumsum(sizes)
        within = np.searchsorted(ends, rows, side="right")
        needed = np.unique(within)
        with self._opened() as table:
            read = table.read_row_groups(needed.tolist(), list(columns))
        starts = np.concatenate([[0], np.cumsum(np.array(sizes)[needed])])[np.searchsorted(needed, within)]
        return read.take(pa.array(starts + rows - (ends - sizes)[within]))


def joined(pieces: Sequence[Any], places: Sequence[Integers]) -> Any:
    """Return tables as one, whose rows are in the order of their places.

    Each column has a type that holds the values of all; where a table lacks it, there are nulls.
    """
    import pyarrow as pa

    types = common_types(pieces)
    promoted = []
    for piece in pieces:
        columns = {}
        for name in piece.column_names:
            column, kind = piece.column(name), types[name]
            empty = column.null_count == len(column)
            columns[name] = pa.nulls(len(column), kind) if empty else promote(column, kind)
        promoted.append(pa.table(columns))
    table = pa.concat_tables(promoted, promote_options="permissive")
    return table.take(pa.array(np.argsort(np.concatenate(places))))


def write_table(path: str, columns: Mapping[str, Any], origin: str) -> None:
    """Write a table, which appears when it is complete; `origin` identifies the vectors of its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(dict(columns)).replace_schema_metadata({_ORIGIN: origin.encode()})
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with published_path(path, DEFAULT_STORAGE) as part:
        pq.write_table(table, part, compression="zstd")
