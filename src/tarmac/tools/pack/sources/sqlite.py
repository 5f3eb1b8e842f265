"""SQLite databases: each row of the table `samples`, or of the only table, is a sample.

`export` writes `samples(number, key, …)` with a column per field; `number` only counts the rows.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from urllib.parse import quote

from tarmac.errors import DecodeFailed, ObjectChanged, UrlError
from tarmac.tools.pack.sources.table import register_table
from tarmac.tools.tables import Position, Row, Table

_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
_EXPORTED, _NUMBER = "samples", "number"


class Sqlite(Table):
    """A database. A position is the identifier of the row."""

    extensions = (".sqlite", ".db", ".sqlite3")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            with self.local.opened(self.url):
                path = f"file:{quote(self.local.path)}?mode=ro"
                with contextlib.closing(sqlite3.connect(path, uri=True)) as database:
                    yield database
        except sqlite3.Error as error:
            raise DecodeFailed(f"the database cannot be read: {error}.", url=self.url) from None

    @cached_property
    def _table(self) -> str:
        with self._opened() as database:
            names = [name for (name,) in database.execute(_TABLES)]
        if _EXPORTED not in names and len(names) != 1:
            what = f"expected one table, or one called {_EXPORTED}, got {', '.join(names) or 'none'}."
            raise UrlError(what, url=self.url)
        return _EXPORTED if _EXPORTED in names else str(names[0])

    @cached_property
    def names(self) -> list[str]:
        with self._opened() as database:
            columns = database.execute(f"PRAGMA table_info({_quoted(self._table)})").fetchall()
        number = _NUMBER if self._table == _EXPORTED else None
        return [name for _, name, _, _, _, primary in columns if not (primary and name == number)]

    @property
    def exported(self) -> bool:
        return self._table == _EXPORTED

    @cached_property
    def _rowid(self) -> str:
        """The name of the identifier of a row that is not the name of a column."""
        names = {name.lower() for name in self.names}
        free = [name for name in ("rowid", "_rowid_", "oid") if name not in names]
        if not free:
            raise UrlError(
                "the table has columns rowid, _rowid_ and oid, so its rows have no name.", url=self.url
            )
        return free[0]

    def _query(self, columns: Sequence[str] | None) -> tuple[list[str], str]:
        names = list(self.names if columns is None else columns)
        listed = ", ".join([self._rowid, *map(_quoted, names)])
        return names, f"SELECT {listed} FROM {_quoted(self._table)}"  # noqa: S608 - quoted

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Position, Row]]:
        names, query = self._query(columns)
        with self._opened() as database:
            for number, *values in database.execute(f"{query} ORDER BY {self._rowid}"):
                yield (number,), dict(zip(names, values, strict=True))

    @contextlib.contextmanager
    def reader(
        self, positions: Sequence[Position], columns: Sequence[str]
    ) -> Iterator[Callable[[Position], Row]]:
        names, query = self._query(columns)
        with self._opened() as database:

            def read(position: Position) -> Row:
                row = database.execute(f"{query} WHERE {self._rowid} = ?", position).fetchone()
                if row is None:
                    raise ObjectChanged("the table changed while it was being read.", url=self.url)
                return dict(zip(names, row[1:], strict=True))

            yield read


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


register_table("sqlite", Sqlite)
