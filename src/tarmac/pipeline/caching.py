"""Stages that keep samples: the first complete pass fills the cache, later passes read from it.

A first pass that was cut short leaves nothing that counts: the next pass starts over. What is kept is a
pickle of what the pipeline itself has made; a cache file from elsewhere must not be used.
"""

from __future__ import annotations

import copy
import importlib
import operator
import os
import pickle
import sqlite3
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tarmac.errors import StateMismatch, UnsafeCodec
from tarmac.order.workers import Place, current_place
from tarmac.pipeline.stage import PipelineStage
from tarmac.storage import is_secure

__all__ = ["Cached", "DBCache", "LMDBCached"]


class Cached(PipelineStage):
    """Keep samples in memory. Later stages get copies, so that what they change stays theirs."""

    def __init__(self) -> None:
        self.cached: list[Any] | None = None
        self._filled: list[int] | None = None
        self._filling = [0, 0]

    def filled_in(self, own: int, shared: int) -> tuple[int, int]:
        """Return the numbers of the pass that filled the cache, or of this one, which will fill it."""
        self._filling = [own, shared] if self._filled is None else self._filled
        return self._filling[0], self._filling[1]

    def seeds(self) -> list[int] | None:
        """Return the numbers of the pass that filled the cache, for a resumed pipeline to read again."""
        return self._filled

    def load_seeds(self, seeds: list[int]) -> None:
        """Fill the cache from this pass."""
        own, shared = map(operator.index, seeds)
        self.cached, self._filled = None, [own, shared]

    def run(self, *args: Any) -> Iterator[Any]:
        (source,) = args
        if self.cached is not None:
            yield from (copy.copy(sample) for sample in self.cached)
            return
        samples = []
        for sample in source:
            samples.append(copy.copy(sample))
            yield sample
        self.cached, self._filled = samples, self._filling


class _OnDisk(PipelineStage):
    """What the caches on disk share: one part per (rank, worker), opened in the process that uses it."""

    def __init__(self, fname: str | os.PathLike[str], pickler: Any, chunksize: int) -> None:
        self.fname, self.pickler, self.chunksize = os.fspath(fname), pickler, chunksize

    def __getstate__(self) -> dict[str, Any]:
        # A module, such as pickle itself, is not picklable; its name is.
        pickler = self.pickler.__name__ if isinstance(self.pickler, ModuleType) else self.pickler
        return {**self.__dict__, "pickler": pickler}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.pickler, str):
            self.pickler = importlib.import_module(self.pickler)

    def run(self, *args: Any) -> Iterator[Any]:
        (source,) = args
        if is_secure():
            raise UnsafeCodec(
                "secure mode reads no pickles, and a sample cache is made of them.", url=self.fname
            )
        part = _part_name(current_place())
        if self.is_complete(part):
            for data in self.stored(part):
                yield self.pickler.loads(data)
            return
        self.begin(part)
        count, chunk = 0, []
        for sample in source:
            chunk.append(self.pickler.dumps(sample))  # before later stages can change it
            yield sample
            if len(chunk) == self.chunksize:
                self.store(part, count, chunk)
                count, chunk = count + len(chunk), []
        self.store(part, count, chunk)
        self.complete(part, count + len(chunk))

    def seeds(self) -> bool | None:
        """Return whether the samples come from the cache, which a resumed pipeline needs then."""
        return True if self.is_complete(_part_name(current_place())) else None

    def load_seeds(self, seeds: bool) -> None:
        """Refuse a state of a pass that read from the cache if the cache is not there."""
        if not self.is_complete(_part_name(current_place())):
            raise StateMismatch(
                "the state was saved while samples came from a cache, which is gone.", url=self.fname
            )

    def is_complete(self, part: str) -> bool:
        """Whether a whole pass was stored."""
        raise NotImplementedError

    def stored(self, part: str) -> Iterator[bytes]:
        """The samples of a whole pass, in order."""
        raise NotImplementedError

    def begin(self, part: str) -> None:
        """Forget a pass that was cut short."""
        raise NotImplementedError

    def store(self, part: str, first: int, chunk: list[bytes]) -> None:
        """Add samples."""
        raise NotImplementedError

    def complete(self, part: str, count: int) -> None:
        """Note that the pass is whole."""
        raise NotImplementedError


def _part_name(place: Place) -> str:
    """Different splits of the data have different parts, so that none is mistaken for another."""
    return f"{place.rank}/{place.world}/{place.worker}/{place.workers}"


class DBCache(_OnDisk):
    """Keep samples in an SQLite file."""

    def __init__(self, dbname: str | os.PathLike[str], pickler: Any = pickle, chunksize: int = 500) -> None:
        super().__init__(dbname, pickler, chunksize)

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.fname, timeout=60, isolation_level=None)
        db.execute(
            "CREATE TABLE IF NOT EXISTS samples"
            " (part TEXT, number INTEGER, data BLOB, PRIMARY KEY (part, number))"
        )
        db.execute("CREATE TABLE IF NOT EXISTS complete (part TEXT PRIMARY KEY, count INTEGER)")
        return db

    def is_complete(self, part: str) -> bool:
        return self._one("SELECT count FROM complete WHERE part = ?", part) is not None

    def _one(self, query: str, part: str) -> Any:
        db = self._open()
        try:
            return db.execute(query, (part,)).fetchone()
        finally:
            db.close()

    def stored(self, part: str) -> Iterator[bytes]:
        db = self._open()
        try:
            for (data,) in db.execute("SELECT data FROM samples WHERE part = ? ORDER BY number", (part,)):
                yield data
        finally:
            db.close()

    def begin(self, part: str) -> None:
        self._one("DELETE FROM samples WHERE part = ?", part)

    def store(self, part: str, first: int, chunk: list[bytes]) -> None:
        db = self._open()
        try:
            db.execute("BEGIN IMMEDIATE")
            rows = ((part, first + number, data) for number, data in enumerate(chunk))
            db.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", rows)
            db.execute("COMMIT")
        finally:
            db.close()

    def complete(self, part: str, count: int) -> None:
        db = self._open()
        try:
            db.execute("INSERT OR REPLACE INTO complete VALUES (?, ?)", (part, count))
        finally:
            db.close()


class LMDBCached(_OnDisk):
    """Keep samples in an LMDB environment."""

    def __init__(
        self,
        fname: str | os.PathLike[str],
        map_size: float = 1e12,
        pickler: Any = pickle,
        chunksize: int = 500,
    ) -> None:
        super().__init__(fname, pickler, chunksize)
        self.map_size = int(map_size)

    def _open(self) -> Any:
        try:
            import lmdb
        except ImportError:
            raise ImportError('LMDBCached needs an extra: pip install "tarmac[lmdb]"') from None
        return lmdb.open(self.fname, map_size=self.map_size)

    def is_complete(self, part: str) -> bool:
        with self._open() as db, db.begin() as txn:
            return txn.get(f"complete {part}".encode()) is not None

    def stored(self, part: str) -> Iterator[bytes]:
        prefix = f"sample {part} ".encode()
        with self._open() as db, db.begin() as txn, txn.cursor() as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                yield bytes(cursor.value())
                found = cursor.next()

    def begin(self, part: str) -> None:
        prefix = f"sample {part} ".encode()
        with self._open() as db, db.begin(write=True) as txn, txn.cursor() as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()

    def store(self, part: str, first: int, chunk: list[bytes]) -> None:
        with self._open() as db, db.begin(write=True) as txn:
            for number, data in enumerate(chunk):
                txn.put(f"sample {part} {first + number:016d}".encode(), data)

    def complete(self, part: str, count: int) -> None:
        with self._open() as db, db.begin(write=True) as txn:
            txn.put(f"complete {part}".encode(), str(count).encode())
