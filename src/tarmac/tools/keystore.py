"""Keep keys, names and rows on disk when there may be more of them than fit into memory.

All of it is SQLite in temporary files, which need not survive a crash, so journals and syncs are off.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import marshal
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any, Literal, NoReturn, Self

from tarmac.errors import DiskFull, SampleError, WriteError
from tarmac.samples.naming import plain_key
from tarmac.tools.workdir import HINT

TIMEOUT = 600.0
"""Seconds to wait for other processes, each of which needs microseconds."""
_LOOKUP_BATCH = 500
"""Keys per query; old versions of SQLite allow 999 parameters."""
_CACHE_KIB = 64 << 10


class Database:
    """A connection to a temporary database; a context manager. One without a path belongs to this process."""

    hint = "set TMPDIR to a directory with free space."
    journal = "OFF"
    one_thread = True
    """Whether one thread alone uses the connection; otherwise one at a time."""

    def __init__(self, path: str, *tables: str) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(
                path, timeout=TIMEOUT, isolation_level=None, check_same_thread=self.one_thread
            )
        except sqlite3.Error as error:
            self._fail(error)
        try:
            for setting in (f"journal_mode={self.journal}", "synchronous=OFF", f"cache_size=-{_CACHE_KIB}"):
                self.execute(f"PRAGMA {setting}")
            with self.transaction():
                for table in tables:
                    self.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        except BaseException:
            self.close()
            raise

    def execute(self, statement: str, values: Any = (), *, many: bool = False) -> sqlite3.Cursor:
        try:
            run = self._connection.executemany if many else self._connection.execute
            return run(statement, values)
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            self._fail(error)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")
        yield
        self.execute("COMMIT")

    def _fail(self, error: sqlite3.Error) -> NoReturn:
        kind = DiskFull if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL" else WriteError
        raise kind(
            f"the temporary database cannot be used: {error}.",
            url=self._path or None,
            hint=self.hint,
        ) from error

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KeyNumbers(Set[str], Database):
    """The keys of a source and the number of each, in the order of their first occurrence.

    A repeated key raises `SampleError`, or its first occurrence counts.
    """

    hint = HINT

    def __init__(
        self, path: str, keys: Iterable[str], *, on_duplicate: Literal["error", "first"], url: str
    ) -> None:
        super().__init__(path, "keys (key BLOB PRIMARY KEY, number INTEGER) WITHOUT ROWID")
        verb = "INSERT OR IGNORE" if on_duplicate == "first" else "INSERT"
        last = ""

        def pairs() -> Iterator[tuple[bytes, int]]:
            nonlocal last
            for number, last in enumerate(keys):
                yield _blob(last), number

        try:
            with self.transaction():
                self.execute(f"{verb} INTO keys VALUES (?, ?)", pairs(), many=True)
        except sqlite3.IntegrityError:
            self.close()
            raise SampleError(
                "the key occurs twice in the data to join.",
                url=url,
                key=last,
                hint='`on_duplicate` "first" takes the first occurrence.',
            ) from None
        except BaseException:
            self.close()
            raise

    def numbers(self, keys: Iterable[str]) -> Iterator[int]:
        """Yield the number of each key; -1 for unknown ones."""
        blobs = map(_blob, keys)
        while some := list(itertools.islice(blobs, _LOOKUP_BATCH)):
            known = self._lookup(some)
            yield from (known.get(key, -1) for key in some)

    def _lookup(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        placeholders = ",".join("?" * len(keys))
        return dict(self.execute(f"SELECT key, number FROM keys WHERE key IN ({placeholders})", keys))  # noqa: S608

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self._lookup([_blob(key)]))

    def __len__(self) -> int:
        (count,) = self.execute("SELECT count(*) FROM keys").fetchone()
        return int(count)

    def __iter__(self) -> Iterator[str]:
        return (_text(key) for (key,) in self.execute("SELECT key FROM keys"))


class RowStore(Database):
    """Rows by number: the key and the fields of each."""

    hint = HINT

    def __init__(self, path: str) -> None:
        super().__init__(path, "rows (number INTEGER PRIMARY KEY, key BLOB, size INTEGER, fields BLOB)")

    def fill(self, rows: Iterable[tuple[str, dict[str, bytes]]]) -> int:
        """Store rows, numbered from 0, and return how many there are."""
        values = (
            (number, _blob(key), sum(map(len, fields.values())), marshal.dumps(fields))
            for number, (key, fields) in enumerate(rows)
        )
        with self.transaction():
            self.execute("INSERT INTO rows VALUES (?, ?, ?, ?)", values, many=True)
        (count,) = self.execute("SELECT count(*) FROM rows").fetchone()
        return int(count)

    def keys(self) -> Iterator[str]:
        """Yield the keys in the order of the rows."""
        return (_text(key) for (key,) in self.execute("SELECT key FROM rows ORDER BY number"))

    def fields(self, numbers: Iterable[int]) -> list[dict[str, bytes]]:
        """Return the fields of these rows."""
        return [marshal.loads(data) for data in self._column("fields", numbers)]  # noqa: S302 - our own file

    def sizes(self, numbers: Iterable[int]) -> list[int]:
        """Return the number of bytes in the fields of these rows."""
        return self._column("size", numbers)

    def _column(self, name: str, numbers: Iterable[int]) -> list[Any]:
        query = f"SELECT {name} FROM rows WHERE number = ?"  # noqa: S608 - our own names
        return [self.execute(query, (number,)).fetchone()[0] for number in numbers]


class SharedKeys:
    """The keys of many shards, added by any number of processes, to find those that occur twice."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _open(self) -> Database:
        return Database(
            self._path, "keys (key BLOB, shard INTEGER)", "shards (shard INTEGER PRIMARY KEY) WITHOUT ROWID"
        )

    def add(self, shard: int, keys: Iterable[str]) -> None:
        """Add the keys of a shard, once: adding the same shard again does nothing."""
        with self._open() as database, database.transaction():
            if database.execute("INSERT OR IGNORE INTO shards VALUES (?)", (shard,)).rowcount:
                pairs = ((_bytes(key), shard) for key in keys)
                database.execute("INSERT INTO keys VALUES (?, ?)", pairs, many=True)

    def duplicates(self) -> Iterator[tuple[str, list[int]]]:
        """Yield each key that occurs more than once, and the numbers of its shards."""
        query = "SELECT key, group_concat(shard) FROM keys GROUP BY key HAVING count(*) > 1"
        with self._open() as database:  # which sorts on disk
            for key, shards in database.execute(query):
                yield _text(key), sorted(map(int, shards.split(",")))


class UniqueNames(Database):
    """Names that are claimed once, by the first of the processes that share `path`, or within this process.

    Only hashes are stored.
    """

    def __init__(self, path: str = "") -> None:
        super().__init__(path, "names (name BLOB PRIMARY KEY) WITHOUT ROWID")

    def take(self, names: Iterable[str]) -> str | None:
        """Take names and return one that was already taken, if any."""
        taken = None
        with self.transaction():
            for name in names:
                digest = hashlib.blake2b(os.fsencode(name), digest_size=16).digest()
                if not self.execute("INSERT OR IGNORE INTO names VALUES (?)", (digest,)).rowcount:
                    taken = taken or name
        return taken


def _blob(key: str) -> bytes:
    return _bytes(plain_key(key))


def _bytes(key: str) -> bytes:
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, which JSON can have but no file name
        return key.encode("utf-8", "surrogatepass")


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
