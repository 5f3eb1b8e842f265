"""Run queries in DuckDB, inside this process: sorts and joins that do not fit into memory go to a directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tarmac.errors import DiskFull, UsageError
from tarmac.extras import import_extra
from tarmac.limits import MIB
from tarmac.selecting.dialect import DUCKDB
from tarmac.selecting.query import FILE, ROW
from tarmac.selecting.sqlerrors import BadEncodingError, as_filter, as_value, condition_failed
from tarmac.tools.workdir import HINT

if TYPE_CHECKING:
    import pyarrow as pa

    from tarmac.selecting.tables import Tables

BATCH = 65_536
"""Rows that are handed over at a time."""


class DuckDBEngine:
    """A database in memory."""

    dialect = DUCKDB
    keeps_order = True
    """Whether rows of a query without a sort are in the order of the tables."""

    def __init__(self, directory: str, memory: int, jobs: int) -> None:
        self._duckdb = import_extra("duckdb", "select", "select")
        self._directory = directory
        # DuckDB's limit covers most of its memory, not all, and Arrow needs some: half is for them.
        settings = {
            "memory_limit": f"{memory // 2 // MIB}MiB",
            "threads": jobs,
            "temp_directory": os.path.join(directory, "spill"),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        self._connection: Any = self._duckdb.connect(":memory:", config=settings)
        self._connection.execute("SET enable_progress_bar = false")

    def close(self) -> None:
        """Release memory and files."""
        self._connection.close()

    def keep_order(self, keep: bool) -> None:
        """Choose whether rows without a sort stay in order, which takes memory."""
        self._connection.execute(f"SET preserve_insertion_order = {'true' if keep else 'false'}")

    def add_tables(self, view: str, tables: Tables, *, positions: bool) -> None:
        """Make tables known under a name, with the types of their common schema."""
        paths = ", ".join(map(DUCKDB.literal, tables.paths))
        columns = []
        for each in tables.schema:
            name = DUCKDB.name(each.name)
            uniform = all(table.schema.field(each.name).type == each.type for table in tables.tables)
            columns.append(name if uniform else f"{DUCKDB.cast(name, each.type)} AS {name}")
        if positions:
            columns += [f"file_index AS {FILE}", f"file_row_number AS {ROW}"]
        by_name = len({tuple(table.schema.names) for table in tables.tables}) > 1 or any(
            not table.schema.equals(tables.tables[0].schema) for table in tables.tables
        )
        # Not columns from names of directories, such as lang=en: they would replace those of the files.
        options = f"union_by_name = {'true' if by_name else 'false'}, hive_partitioning = false"
        source = f"read_parquet([{paths}], {options})"
        self.add_view(view, f"SELECT {', '.join(columns)} FROM {source}")

    def add_view(self, view: str, query: str) -> None:
        """Make a query known under a name."""
        with self._errors():
            self._connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {query}")

    def check_condition(self, condition: str, view: str, columns: Sequence[str]) -> None:
        """Raise if a condition is invalid."""
        try:
            ((_, kind, *_),) = self._connection.execute(f"DESCRIBE {as_value(condition, view)}").fetchall()
            self._connection.execute(f"DESCRIBE {as_filter(condition, view)}")
        except self._duckdb.Error as error:
            raise condition_failed(error, condition, columns) from None
        if kind not in ("BOOLEAN", '"NULL"'):
            raise UsageError(f"expected a condition, got {kind} values.", field="where")

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small result."""
        with self._errors():
            rows: list[tuple[Any, ...]] = self._connection.execute(query).fetchall()
            return rows

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a result, in order and in bounded memory."""
        with self._errors():
            result = self._connection.sql(query)
            read = getattr(result, "to_arrow_reader", None) or result.fetch_record_batch
            for batch in read(BATCH):
                if batch.num_rows:
                    yield batch

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._duckdb.OutOfMemoryException as error:
            what = f"DuckDB needs more memory: {_first_line(error)}"
            raise UsageError(what, field="memory", hint="a larger `memory`, or fewer `jobs`.") from None
        except (self._duckdb.Error, RuntimeError, OSError) as error:
            message = str(error)
            if "interrupted" in message.lower():  # a signal, which came while no Python ran
                raise KeyboardInterrupt from None
            if "Invalid string encoding" in message or "Invalid unicode" in message:
                raise BadEncodingError(message) from None
            if "No space left" in message or "max_temp_directory_size" in message:
                raise DiskFull(_first_line(error), url=self._directory, hint=HINT) from None
            if isinstance(error, self._duckdb.Error):
                raise UsageError(f"DuckDB cannot run the query: {_first_line(error)}") from None
            raise


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".") + "."
