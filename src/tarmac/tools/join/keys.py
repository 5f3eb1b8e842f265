"""From keys to numbers, for more keys than fit into memory: a database in a file."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import islice
from typing import Any, Literal

from tarmac.errors import SampleError, WriteError
from tarmac.samples.naming import plain_key

__all__ = ["database", "KeyTable"]

_AT_ONCE = 500
"""Questions in one query; old versions of SQLite allow no more than 999."""
_CACHE = 64 << 10
"""KiB of a database that are kept in memory."""


@contextlib.contextmanager
def database(path: str) -> Iterator[sqlite3.Connection]:
    """Open a working database. It is not meant to survive a crash, so nothing is done for that."""
    try:
        opened = sqlite3.connect(path, isolation_level=None)
    except sqlite3.OperationalError as error:
        raise _unusable(path, error) from error
    try:
        for setting in (
            "journal_mode=OFF",
            "synchronous=OFF",
            "locking_mode=NORMAL",
            f"cache_size=-{_CACHE}",
        ):
            opened.execute(f"PRAGMA {setting}")
        yield opened
    except sqlite3.OperationalError as error:
        raise _unusable(path, error) from error
    finally:
        opened.close()


def _unusable(path: str, error: sqlite3.Error) -> WriteError:
    hint = "--tmp DIR, a directory that can be written to and has room."
    return WriteError(f"the working database cannot be used: {error}.", url=path, hint=hint)


class KeyTable(Set[str]):
    """The keys of a source, each with its number; `key in table` asks the database."""

    def __init__(self, path: str, opened: sqlite3.Connection) -> None:
        self._path, self._opened = path, opened
        self._count = 0

    @classmethod
    @contextlib.contextmanager
    def made(
        cls, path: str, keys: Iterable[str], duplicates: Literal["error", "first"], source: str
    ) -> Iterator[KeyTable]:
        """Number keys as they come. One that comes twice is an error, or the first one counts."""
        with database(path) as opened:
            table = cls(path, opened)
            opened.execute("CREATE TABLE keys (key BLOB PRIMARY KEY, number INTEGER) WITHOUT ROWID")
            opened.execute("BEGIN")
            table._fill(enumerate(keys), duplicates, source)
            opened.execute("COMMIT")
            yield table

    def _fill(self, keys: Iterator[tuple[int, str]], duplicates: str, source: str) -> None:
        verb = "INSERT OR IGNORE" if duplicates == "first" else "INSERT"
        for number, key in keys:
            try:
                self._opened.execute(f"{verb} INTO keys VALUES (?, ?)", (_blob(key), number))
            except sqlite3.IntegrityError:
                hint = "--duplicates first takes the first of them."
                raise SampleError(
                    "the key comes twice in what is joined.", url=source, key=key, hint=hint
                ) from None
        (self._count,) = self._opened.execute("SELECT count(*) FROM keys").fetchone()

    def numbers(self, keys: Iterable[str]) -> Iterator[int]:
        """The number of each key; -1 for one that is not there."""
        waiting = iter(keys)
        while some := list(islice(waiting, _AT_ONCE)):
            found = self._found([_blob(key) for key in some])
            yield from (found.get(_blob(key), -1) for key in some)

    def _found(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        marks = ",".join("?" * len(keys))
        query = f"SELECT key, number FROM keys WHERE key IN ({marks})"  # noqa: S608 - nothing but marks
        return dict(self._opened.execute(query, keys))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self._found([_blob(key)]))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for (key,) in self._opened.execute("SELECT key FROM keys"):
            yield key.decode("utf-8", "surrogateescape")

    def __reduce__(self) -> Any:
        raise TypeError("a table of keys stays in its process")


def _blob(key: str) -> bytes:
    key = plain_key(key)
    return key.encode("utf-8", "surrogatepass" if _halves(key) else "surrogateescape")


def _halves(key: str) -> bool:
    """Whether a text has halves of characters that no file name can have; JSON can."""
    return any("\ud800" <= letter <= "\udfff" and not "\udc80" <= letter <= "\udcff" for letter in key)
