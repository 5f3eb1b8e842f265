"""Stages that keep samples: the first complete pass fills the cache, later passes read from it.

A first pass that was cut short leaves nothing that counts: the next pass starts over. What is kept on disk
are pickles of what the pipeline itself has made, sealed with a key of the user; a file from elsewhere is
refused.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import operator
import os
import pickle
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tarmac.errors import DecodeFailed, StateMismatch, UnsafeCodec
from tarmac.limits import DEFAULT_LIMITS
from tarmac.runtime.worker_info import WorkerInfo, current_worker_info
from tarmac.steps.stage import PipelineStage
from tarmac.storage import is_secure
from tarmac.storage.locks import FileLock
from tarmac.stream.seals import Sealer, check_owner

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
        part, sealer = _part_name(current_worker_info()), Sealer(self.fname)
        kept = self.count(part)
        if kept is not None:
            yield from self._kept(part, int(sealer.open(kept, "complete", part)), sealer)
            return
        self.begin(part)
        count = 0
        chunk: list[bytes] = []
        for sample in source:
            # before later stages can change it
            chunk.append(sealer.seal(self.pickler.dumps(sample), part, count + len(chunk)))
            yield sample
            if len(chunk) == self.chunksize:
                self.store(part, count, chunk)
                count, chunk = count + len(chunk), []
        self.store(part, count, chunk)
        self.complete(part, sealer.seal(b"%d" % (count + len(chunk)), "complete", part))

    def seeds(self) -> bool | None:
        """Return whether the samples come from the cache, which a resumed pipeline needs then."""
        return True if self._holds_a_pass() else None

    def load_seeds(self, seeds: bool) -> None:
        """Refuse a state of a pass that read from the cache if the cache is not there."""
        if not self._holds_a_pass():
            raise StateMismatch(
                "the state was saved while samples came from a cache, which is gone.", url=self.fname
            )

    def _holds_a_pass(self) -> bool:
        return os.path.exists(self.fname) and self.count(_part_name(current_worker_info())) is not None

    def _kept(self, part: str, count: int, sealer: Sealer) -> Iterator[Any]:
        """Load the samples of a whole pass; one that is missing, changed or elsewhere is an error."""
        number = 0
        for sealed in self.stored(part):
            data = sealer.open(sealed, part, number)
            try:
                sample = self.pickler.loads(data)
            except Exception as error:
                what = f"sample {number} cannot be loaded: {type(error).__name__}: {error}"
                raise self._unusable(what) from error
            yield sample
            number += 1
        if number != count:
            raise self._unusable(f"it has {number} of {count} samples")

    def _unusable(self, what: str) -> DecodeFailed:
        return DecodeFailed(
            f"the sample cache cannot be used: {what}.",
            url=self.fname,
            hint="remove it, and it is made again.",
        )

    def count(self, part: str) -> bytes | None:
        """How many samples a whole pass has, sealed; None if no whole pass was stored."""
        raise NotImplementedError

    def stored(self, part: str) -> Iterator[object]:
        """The samples of a whole pass, sealed, in order."""
        raise NotImplementedError

    def begin(self, part: str) -> None:
        """Forget a pass that was cut short."""
        raise NotImplementedError

    def store(self, part: str, first: int, chunk: list[bytes]) -> None:
        """Add samples."""
        raise NotImplementedError

    def complete(self, part: str, count: bytes) -> None:
        """Note that the pass is whole."""
        raise NotImplementedError


def _part_name(place: WorkerInfo) -> str:
    """Different splits of the data have different parts, so that none is mistaken for another."""
    return f"{place.rank}/{place.world_size}/{place.worker}/{place.workers}"


_TABLES = {
    "samples": "CREATE TABLE samples (part TEXT, number INTEGER, data BLOB, PRIMARY KEY (part, number))",
    "complete": "CREATE TABLE complete (part TEXT PRIMARY KEY, count BLOB)",
}


class DBCache(_OnDisk):
    """Keep samples in an SQLite file."""

    def __init__(self, dbname: str | os.PathLike[str], pickler: Any = pickle, chunksize: int = 500) -> None:
        super().__init__(dbname, pickler, chunksize)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            if not check_owner(self.fname):
                with contextlib.suppress(FileExistsError):  # another worker was quicker
                    os.close(os.open(self.fname, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with contextlib.closing(sqlite3.connect(self.fname, timeout=60, isolation_level=None)) as db:
                # What somebody else's schema says is not run, neither by reading nor by writing.
                db.execute("PRAGMA trusted_schema = OFF")
                db.execute("PRAGMA cell_size_check = ON")
                db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(DEFAULT_LIMITS.member_bytes, (1 << 31) - 1))
                self._check_schema(db)
                yield db
        except (sqlite3.Error, OSError) as error:
            raise self._unusable(str(error)) from error

    def _check_schema(self, db: sqlite3.Connection) -> None:
        """Make the tables of a new file; refuse a file that has others, or more than these."""
        look = (
            "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL OR name NOT LIKE 'sqlite_autoindex_%'"
        )
        if not db.execute(look).fetchall():
            db.execute("BEGIN IMMEDIATE")  # one worker makes them, and others wait
            if not db.execute(look).fetchall():
                for table in _TABLES.values():
                    db.execute(table)
            db.execute("COMMIT")
        if dict(db.execute(look).fetchall()) != _TABLES:
            raise self._unusable("this is a database of something else")

    def count(self, part: str) -> bytes | None:
        with self._open() as db:
            found = db.execute("SELECT count FROM complete WHERE part = ?", (part,)).fetchone()
            return None if found is None else found[0]

    def stored(self, part: str) -> Iterator[object]:
        with self._open() as db:
            for (data,) in db.execute("SELECT data FROM samples WHERE part = ? ORDER BY number", (part,)):
                yield data

    def begin(self, part: str) -> None:
        with self._open() as db:
            db.execute("DELETE FROM samples WHERE part = ?", (part,))

    def store(self, part: str, first: int, chunk: list[bytes]) -> None:
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")
            rows = ((part, first + number, data) for number, data in enumerate(chunk))
            db.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?)", rows)
            db.execute("COMMIT")

    def complete(self, part: str, count: bytes) -> None:
        with self._open() as db:
            db.execute("INSERT OR REPLACE INTO complete VALUES (?, ?)", (part, count))


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

    @contextlib.contextmanager
    def _open(self, *, write: bool = False) -> Iterator[Any]:
        try:
            import lmdb
        except ImportError:
            raise ImportError('LMDBCached needs an extra: pip install "tarmac[lmdb]"') from None
        try:
            with self._locked(write) as sealer, lmdb.open(self.fname, self.map_size, mode=0o600) as db:
                with db.begin(write=write) as transaction:
                    yield transaction
                if write:
                    self._put_seal(sealer)
        except (lmdb.Error, OSError) as error:
            raise self._unusable(str(error)) from error

    @contextlib.contextmanager
    def _locked(self, write: bool) -> Iterator[Sealer]:
        """Let LMDB have its file if it is as we left it, and nobody else write to it meanwhile.

        LMDB maps the file and believes it, so one that was forged or cut could do anything. The seal says
        which file it was after the last change. One that was changed since is made again; one that we did
        not make is refused.
        """
        os.makedirs(self.fname, mode=0o700, exist_ok=True)
        check_owner(self.fname)
        sealer, lock = Sealer(self.fname), FileLock(Path(self._file("tarmac.lock")))
        lock.acquire()
        try:
            if check_owner(self._file("data.mdb")) and self._sealed(sealer) != self._state():
                os.unlink(self._file("data.mdb"))
            if not os.path.lexists(self._file("data.mdb")):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._file("lock.mdb"))
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                os.close(os.open(self._file("data.mdb"), flags, 0o600))
                self._put_seal(sealer)
            if not write:
                lock.release()
            yield sealer
        finally:
            lock.release()

    def _state(self) -> bytes:
        """What changes whenever the file does, and cannot be set."""
        found = os.lstat(self._file("data.mdb"))
        return b"%d %d %d" % (found.st_ino, found.st_ctime_ns, found.st_size)

    def _put_seal(self, sealer: Sealer) -> None:
        Path(self._file("tarmac.part")).write_bytes(sealer.seal(self._state(), "lmdb"))
        os.replace(self._file("tarmac.part"), self._file("tarmac.seal"))

    def _sealed(self, sealer: Sealer) -> bytes:
        try:
            return sealer.open(Path(self._file("tarmac.seal")).read_bytes()[:1000], "lmdb")
        except FileNotFoundError:
            raise sealer.foreign() from None

    def _file(self, name: str) -> str:
        return os.path.join(self.fname, name)

    def count(self, part: str) -> bytes | None:
        with self._open() as txn:
            found: bytes | None = txn.get(f"complete {part}".encode())
            return found

    def stored(self, part: str) -> Iterator[object]:
        prefix = f"sample {part} ".encode()
        with self._open() as txn, txn.cursor() as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                yield cursor.value()
                found = cursor.next()

    def begin(self, part: str) -> None:
        prefix = f"sample {part} ".encode()
        with self._open(write=True) as txn, txn.cursor() as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()

    def store(self, part: str, first: int, chunk: list[bytes]) -> None:
        with self._open(write=True) as txn:
            for number, data in enumerate(chunk):
                txn.put(f"sample {part} {first + number:016d}".encode(), data)

    def complete(self, part: str, count: bytes) -> None:
        with self._open(write=True) as txn:
            txn.put(f"complete {part}".encode(), count)
