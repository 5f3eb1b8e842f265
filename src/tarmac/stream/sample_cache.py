"""Stages that cache samples: the first complete epoch fills the cache, later epochs read from it.

An epoch that is interrupted leaves the cache empty. Caches on disk hold pickles, signed with a key of the user; a
file that was not signed with this key is never loaded.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import operator
import os
import pickle
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tarmac.errors import DecodeFailed, StateMismatch, UnsafeCodec
from tarmac.extras import import_extra
from tarmac.limits import DEFAULT_LIMITS
from tarmac.runtime.worker_info import current_worker_info
from tarmac.steps.stage import PipelineStage
from tarmac.storage import is_secure
from tarmac.storage.locks import FileLock
from tarmac.stream.signing import Signer, check_owner


class Cached(PipelineStage):
    """Keep samples in memory. Later stages get copies, which they may change."""

    def __init__(self) -> None:
        self.cached: list[Any] | None = None
        self._filled: list[int] | None = None
        self._filling = [0, 0]

    def upstream_epochs(self, own: int, shared: int) -> tuple[int, int]:
        self._filling = [own, shared] if self._filled is None else self._filled
        return self._filling[0], self._filling[1]

    def seeds(self) -> list[int] | None:
        return self._filled

    def load_seeds(self, seeds: list[int]) -> None:
        own, shared = map(operator.index, seeds)
        self.cached, self._filled = None, [own, shared]

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        if self.cached is not None:
            yield from (copy.copy(sample) for sample in self.cached)
            return
        samples = []
        for sample in source:
            samples.append(copy.copy(sample))
            yield sample
        self.cached, self._filled = samples, self._filling


class _OnDisk(PipelineStage):
    """Base class of caches on disk: one part per reader, opened in the process that uses it."""

    def __init__(self, fname: str | os.PathLike[str], pickler: Any, chunksize: int) -> None:
        self.fname: str = os.fspath(fname)
        self.pickler: Any = pickler
        self.chunksize: int = chunksize

    def __getstate__(self) -> dict[str, Any]:
        # A module, such as pickle itself, cannot be pickled; its name can.
        pickler = self.pickler.__name__ if isinstance(self.pickler, ModuleType) else self.pickler
        return {**self.__dict__, "pickler": pickler}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.pickler, str):
            self.pickler = importlib.import_module(self.pickler)

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        if is_secure():
            raise UnsafeCodec(
                "secure mode does not load pickles, which sample caches consist of.", url=self.fname
            )
        part, signer = _part_name(), Signer(self.fname)
        signed = self.count(part)
        if signed is not None:
            yield from self._load(part, int(signer.verify(signed, "complete", part)), signer)
            return
        self.begin(part)
        count = 0
        chunk: list[bytes] = []
        for sample in source:
            # Pickle the sample before later stages can change it.
            chunk.append(signer.sign(self.pickler.dumps(sample), part, count + len(chunk)))
            yield sample
            if len(chunk) == self.chunksize:
                self.store(part, count, chunk)
                count, chunk = count + len(chunk), []
        self.store(part, count, chunk)
        self.complete(part, signer.sign(b"%d" % (count + len(chunk)), "complete", part))

    def seeds(self) -> bool | None:
        """Return True if the samples come from the cache, which a resumed pipeline then needs."""
        return True if self._is_complete() else None

    def load_seeds(self, seeds: bool) -> None:
        """Raise if the cache that the state depends on does not exist."""
        if not self._is_complete():
            raise StateMismatch("the state depends on a sample cache that does not exist.", url=self.fname)

    def _is_complete(self) -> bool:
        return os.path.exists(self.fname) and self.count(_part_name()) is not None

    def _load(self, part: str, count: int, signer: Signer) -> Iterator[Any]:
        """Yield the samples of a complete epoch; raise if one is missing, changed or in another position."""
        number = 0
        for signed in self.stored(part):
            data = signer.verify(signed, part, number)
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
            hint="delete it if it is a sample cache, which will be rebuilt, or use another file.",
        )

    def count(self, part: str) -> bytes | None:
        """Return the signed number of samples of a complete epoch; None if there is none."""
        raise NotImplementedError

    def stored(self, part: str) -> Iterator[object]:
        """Yield the signed samples of a complete epoch, in order."""
        raise NotImplementedError

    def begin(self, part: str) -> None:
        """Delete the samples of an interrupted epoch."""
        raise NotImplementedError

    def store(self, part: str, first: int, chunk: list[bytes]) -> None:
        """Add samples."""
        raise NotImplementedError

    def complete(self, part: str, count: bytes) -> None:
        """Record that the epoch is complete."""
        raise NotImplementedError


def _part_name() -> str:
    """Return the name of this reader's part; it contains the number of readers, which determines the split."""
    info = current_worker_info()
    return f"{info.rank}/{info.world_size}/{info.worker}/{info.workers}"


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
                with contextlib.suppress(FileExistsError):  # another worker was faster
                    os.close(os.open(self.fname, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with contextlib.closing(sqlite3.connect(self.fname, timeout=60, isolation_level=None)) as db:
                # Never run code of a foreign schema, neither by reading nor by writing.
                db.execute("PRAGMA trusted_schema = OFF")
                db.execute("PRAGMA cell_size_check = ON")
                db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(DEFAULT_LIMITS.member_bytes, (1 << 31) - 1))
                self._check_schema(db)
                yield db
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # names in a damaged schema
            raise self._unusable(str(error)) from error

    def _check_schema(self, db: sqlite3.Connection) -> None:
        """Create the tables of a new file; raise if the file has other tables."""
        query = (
            "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL OR name NOT LIKE 'sqlite_autoindex_%'"
        )
        if not db.execute(query).fetchall():
            db.execute("BEGIN IMMEDIATE")  # one worker creates them, and others wait
            if not db.execute(query).fetchall():
                for table in _TABLES.values():
                    db.execute(table)
            db.execute("COMMIT")
        if dict(db.execute(query).fetchall()) != _TABLES:
            raise self._unusable("it is not a sample cache")

    def count(self, part: str) -> bytes | None:
        with self._open() as db:
            row = db.execute("SELECT count FROM complete WHERE part = ?", (part,)).fetchone()
            return None if row is None else row[0]

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
        self.map_size: int = int(map_size)

    @contextlib.contextmanager
    def _open(self, *, write: bool = False) -> Iterator[Any]:
        lmdb = import_extra("lmdb", "lmdb", "LMDBCached")
        try:
            with self._locked(write) as signer, lmdb.open(self.fname, self.map_size, mode=0o600) as db:
                with db.begin(write=write) as transaction:
                    yield transaction
                if write:
                    self._write_signature(signer)
        except (lmdb.Error, OSError) as error:
            raise self._unusable(str(error)) from error

    @contextlib.contextmanager
    def _locked(self, write: bool) -> Iterator[Signer]:
        """Lock the directory, and check that the file of LMDB is unchanged before LMDB opens it.

        LMDB maps the file and trusts it, so a forged or truncated one could do anything. A signature identifies the
        file after its last change. A file that was changed since is rebuilt; one without our signature is an error.
        """
        os.makedirs(self.fname, mode=0o700, exist_ok=True)
        check_owner(self.fname)
        signer, lock = Signer(self.fname), FileLock(Path(self._file("tarmac.lock")))
        lock.acquire()
        try:
            if check_owner(self._file("data.mdb")) and self._verified_identity(signer) != self._identity():
                os.unlink(self._file("data.mdb"))
            if not os.path.lexists(self._file("data.mdb")):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._file("lock.mdb"))
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                os.close(os.open(self._file("data.mdb"), flags, 0o600))
                self._write_signature(signer)
            if not write:
                lock.release()
            yield signer
        finally:
            lock.release()

    def _identity(self) -> bytes:
        """Return values that change with the file, and that a program cannot set."""
        status = os.lstat(self._file("data.mdb"))
        return b"%d %d %d" % (status.st_ino, status.st_ctime_ns, status.st_size)

    def _write_signature(self, signer: Signer) -> None:
        Path(self._file("tarmac.part")).write_bytes(signer.sign(self._identity(), "lmdb"))
        os.replace(self._file("tarmac.part"), self._file("tarmac.seal"))

    def _verified_identity(self, signer: Signer) -> bytes:
        try:
            return signer.verify(Path(self._file("tarmac.seal")).read_bytes()[:1000], "lmdb")
        except FileNotFoundError:
            raise signer.untrusted() from None

    def _file(self, name: str) -> str:
        return os.path.join(self.fname, name)

    def count(self, part: str) -> bytes | None:
        with self._open() as txn:
            signed: bytes | None = txn.get(f"complete {part}".encode())
            return signed

    def stored(self, part: str) -> Iterator[object]:
        prefix = f"sample {part} ".encode()
        with self._open() as txn, txn.cursor() as cursor:
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                yield cursor.value()
                more = cursor.next()

    def begin(self, part: str) -> None:
        prefix = f"sample {part} ".encode()
        with self._open(write=True) as txn, txn.cursor() as cursor:
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                more = cursor.delete()

    def store(self, part: str, first: int, chunk: list[bytes]) -> None:
        with self._open(write=True) as txn:
            for number, data in enumerate(chunk):
                txn.put(f"sample {part} {first + number:016d}".encode(), data)

    def complete(self, part: str, count: bytes) -> None:
        with self._open(write=True) as txn:
            txn.put(f"complete {part}".encode(), count)
