"""SQLite: one table `samples(number, key, …)` with a column per field and an index of the keys.

Integers are INTEGER, text and JSON are TEXT, everything else is BLOB. Samples with equal keys are all kept.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from tarmac.errors import EncodeFailed, UsageError, WriteError
from tarmac.samples.grouping import Sample
from tarmac.tools.export.formats import RowOptions, Writer, payload

TRANSACTION = 10_000
"""Samples per transaction."""
_TYPES = {"int": "INTEGER", "text": "TEXT", "json": "TEXT", "bytes": "BLOB"}


class SqliteWriter(Writer):
    """Writes a database, in transactions of several samples."""

    def __init__(self, path: str, row: RowOptions) -> None:
        taken = {"number", "key"} if row.key else {"number"}
        for column in row.columns or ():
            if column.lower() in taken:
                names = (f"other={name}" if name == column else name for name in row.columns or ())
                hint = f"`fields` {','.join(names)}, to rename it."
                raise UsageError(f'the table already has a column "{column}".', hint=hint)
            taken.add(column.lower())
        self._row, self._pending = row, 0
        columns = [f"{_quoted(name)} {_TYPES[row.kinds.of(name)]}" for name in row.columns or ()]
        if row.key:
            columns.insert(0, '"key" TEXT NOT NULL')
        self._database = sqlite3.connect(path, isolation_level=None)
        # The file gets its name only when it is complete, so nothing has to be undone.
        self._run("PRAGMA journal_mode = OFF")
        self._run("PRAGMA synchronous = OFF")
        self._run(f"CREATE TABLE samples ({', '.join(['number INTEGER PRIMARY KEY', *columns])})")
        self._insert = f"INSERT INTO samples VALUES (NULL{', ?' * len(columns)})"  # noqa: S608 - placeholders only

    def add(self, sample: Sample) -> int:
        row = self._row.row(sample)
        if not self._database.in_transaction:  # a transaction continues after a rejected sample
            self._run("BEGIN")
        try:
            self._run(self._insert, row)
        except (sqlite3.DataError, OverflowError) as error:
            raise EncodeFailed(f"SQLite rejects the sample: {error}.") from None
        self._pending += 1
        if self._pending == TRANSACTION:
            self._commit()
        return payload(sample)

    def _run(self, statement: str, values: Any = ()) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise WriteError(f"the database cannot be written: {error}.") from error

    def _commit(self) -> None:
        if self._database.in_transaction:
            self._run("COMMIT")
        self._pending = 0

    def finish(self) -> None:
        self._commit()
        if self._row.key:
            self._run('CREATE INDEX samples_key ON samples ("key")')
        self._database.close()

    def close(self) -> None:
        self._database.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
