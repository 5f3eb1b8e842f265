"""SQLite: one table `samples(number, key, …)`, a column for each field, an index of the keys.

Whole numbers are INTEGER, text and JSON are TEXT, everything else is BLOB. Samples with equal keys all stay.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from tarmac.errors import EncodeFailed, UrlError, WriteError
from tarmac.samples.grouping import Sample
from tarmac.tools.export.form import Shape, Writer, payload

__all__ = ["open_writer"]

AT_ONCE = 10_000
"""Samples of a transaction, at most."""
_TYPES = {"int": "INTEGER", "text": "TEXT", "json": "TEXT", "bytes": "BLOB"}


def open_writer(name: str, path: str, shape: Shape) -> Writer:
    """Begin a database in a file that nobody else uses yet."""
    del name
    taken = {"number", "key"} if shape.key else {"number"}
    for column in shape.columns or ():
        if column.lower() in taken:
            hint = f"--fields other={column},…"
            raise UrlError(f'the table has another column that is called "{column}".', hint=hint)
        taken.add(column.lower())
    return _Database(path, shape)


class _Database(Writer):
    def __init__(self, path: str, shape: Shape) -> None:
        self._shape, self._path, self._waiting = shape, path, 0
        columns = [(_quoted(name), _TYPES[shape.kinds.of(name)]) for name in shape.columns or ()]
        if shape.key:
            columns.insert(0, ('"key"', "TEXT NOT NULL"))
        self._database = sqlite3.connect(path, isolation_level=None)
        # The file gets its name only when it is whole, so nothing has to be undone.
        self._run("PRAGMA journal_mode = OFF")
        self._run("PRAGMA synchronous = OFF")
        listed = "".join(f", {name} {kind}" for name, kind in columns)
        self._run(f"CREATE TABLE samples (number INTEGER PRIMARY KEY{listed})")
        self._insert = f"INSERT INTO samples VALUES (NULL{', ?' * len(columns)})"  # noqa: S608 - marks only

    def add(self, sample: Sample) -> int:
        row = self._shape.row(sample)
        if not self._database.in_transaction:  # one that began with a sample that was refused goes on
            self._run("BEGIN")
        try:
            self._run(self._insert, row)
        except (sqlite3.DataError, OverflowError) as error:
            raise EncodeFailed(f"SQLite does not take the sample: {error}.") from None
        self._waiting += 1
        if self._waiting == AT_ONCE:
            self._commit()
        return payload(sample)

    def _run(self, statement: str, values: Any = ()) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.OperationalError as error:
            raise WriteError(f"the database could not be written: {error}.") from error

    def _commit(self) -> None:
        if self._database.in_transaction:
            self._run("COMMIT")
        self._waiting = 0

    def finish(self) -> None:
        self._commit()
        if self._shape.key:
            self._run('CREATE INDEX samples_key ON samples ("key")')
        self._database.close()

    def close(self) -> None:
        self._database.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
