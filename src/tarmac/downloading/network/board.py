"""What the processes of one machine tell each other: rules of sites, which hosts want a pause, and numbers of rows."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping

from tarmac.runtime.processes import is_running
from tarmac.tools.keystore import Database


class Board(Database):
    """A small database. Its write-ahead log survives a process that is killed in the middle of a change."""

    journal = "WAL"

    def __init__(self, path: str) -> None:
        super().__init__(
            path,
            "rules (origin TEXT, name TEXT, content TEXT, PRIMARY KEY (origin, name)) WITHOUT ROWID",
            "asking (origin TEXT PRIMARY KEY, process INTEGER) WITHOUT ROWID",
            "pauses (host TEXT PRIMARY KEY, until REAL) WITHOUT ROWID",
            "counts (name TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID",
        )

    def rules(self, origin: str) -> dict[str, str] | None:
        """Return the files of rules of a site; None if no process has them."""
        return dict(self.execute("SELECT name, content FROM rules WHERE origin = ?", (origin,))) or None

    def may_ask(self, origin: str) -> bool:
        """Return whether this process is to ask a site for its rules: no other one does."""
        own = os.getpid()
        if self.execute("INSERT OR IGNORE INTO asking VALUES (?, ?)", (origin, own)).rowcount:
            return True
        (row,) = self.execute("SELECT process FROM asking WHERE origin = ?", (origin,)).fetchall() or [(own,)]
        if row[0] == own or is_running(row[0]):
            return bool(row[0] == own)
        change = "UPDATE asking SET process = ? WHERE origin = ? AND process = ?"
        return self.execute(change, (own, origin, row[0])).rowcount > 0

    def publish(self, origin: str, files: Mapping[str, str]) -> None:
        """Tell the others the rules of a site."""
        rows = ((origin, name, content) for name, content in files.items())
        with self.transaction():
            self.execute("INSERT OR REPLACE INTO rules VALUES (?, ?, ?)", rows, many=True)

    def give_up(self, origin: str) -> None:
        """Let another process ask, because this one got no answer."""
        self.execute("DELETE FROM asking WHERE origin = ? AND process = ?", (origin, os.getpid()))

    def pause(self, host: str, seconds: float) -> None:
        """Tell the others that a host wants no request for a while."""
        change = (
            "INSERT INTO pauses VALUES (?, ?) ON CONFLICT DO UPDATE SET until = max(until, excluded.until)"
        )
        self.execute(change, (host, time.time() + seconds))

    def paused(self, host: str) -> float:
        """Return for how many seconds a host wants no request."""
        row = self.execute("SELECT until FROM pauses WHERE host = ?", (host,)).fetchone()
        return 0.0 if row is None else max(row[0] - time.time(), 0.0)

    def add(self, counts: Mapping[str, int]) -> None:
        """Add to the numbers of all processes."""
        change = (
            "INSERT INTO counts VALUES (?, ?) ON CONFLICT DO UPDATE SET number = number + excluded.number"
        )
        with self.transaction():
            self.execute(change, counts.items(), many=True)

    def counts(self) -> Counter[str]:
        """Return the numbers of all processes."""
        return Counter(dict(self.execute("SELECT name, number FROM counts")))
