"""Names that can be taken once, by the first of all processes of a job that comes.

They stand as hashes in a database in a file, so that it takes no memory to know millions of them.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable
from typing import Any

from tarmac.errors import WriteError

__all__ = ["Claims"]

PATIENCE = 600.0
"""Seconds to wait for others, each of which needs some microseconds."""


class Claims:
    """The names that are taken; `path` is what the processes of a job share, without one it is for us alone.

    The file is not meant to survive a crash, so nothing is done for that.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path
        try:
            self._database = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        try:
            self._run("PRAGMA journal_mode = OFF")
            self._run("PRAGMA synchronous = OFF")
            self._run("BEGIN IMMEDIATE")  # of several that begin at once one makes the table, the others wait
            self._run("CREATE TABLE IF NOT EXISTS names (name BLOB PRIMARY KEY) WITHOUT ROWID")
            self._run("COMMIT")
        except BaseException:
            self.close()
            raise

    def take(self, names: Iterable[str]) -> str | None:
        """Take names, all at once; return one that was taken before, if there is one."""
        found = None
        self._run("BEGIN IMMEDIATE")
        for name in names:
            mark = hashlib.blake2b(os.fsencode(name), digest_size=16).digest()
            if not self._run("INSERT OR IGNORE INTO names VALUES (?)", (mark,)).rowcount:
                found = found or name
        self._run("COMMIT")
        return found

    def _run(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def _unusable(self, error: sqlite3.Error) -> WriteError:
        what = f"the names of the files cannot be kept for comparison: {error}."
        return WriteError(what, url=self._path or None, hint="TMPDIR, a directory with room.")

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()
