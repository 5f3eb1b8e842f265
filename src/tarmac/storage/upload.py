"""A target in a remote store: collected in a local file, uploaded by `commit`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from tarmac.errors import CommitFailed, DiskFull, NotFound, TarmacError, WriteError
from tarmac.limits import MIB
from tarmac.storage.local import read_at
from tarmac.storage.types import StorageOptions, WriteOptions

if TYPE_CHECKING:
    from tarmac.storage.store import Store

_ABSENT = object()
_UNKNOWN = object()


class UploadSink:
    """Collect an object in an unnamed local file, then upload it.

    Nothing reaches the store before commit, so an abandoned or killed writer leaves neither an object
    nor the hidden remains of an unfinished upload.
    """

    def __init__(self, store: Store, url: str, storage: StorageOptions, write: WriteOptions) -> None:
        self._store = store
        self._url = url
        self._storage = storage
        self._overwrite = write.overwrite
        self._existing = self._look_up()
        if self._overwrite is False and self._existing is not _ABSENT:
            raise CommitFailed(
                "the object exists.",
                url=url,
                hint="write=tarmac.storage.WriteOptions(overwrite=True), or another name.",
            )
        with self._spooling():
            self._spool: IO[bytes] = tempfile.TemporaryFile(buffering=MIB)  # noqa: SIM115

    def _look_up(self) -> object:
        """Return the version that exists under the name; credentials may allow writing but not reading."""
        if self._overwrite:
            return _UNKNOWN
        try:
            return self._store.stat(self._url, self._storage)
        except NotFound:
            return _ABSENT
        except TarmacError:
            if self._overwrite is False:
                raise
            return _UNKNOWN

    @contextlib.contextmanager
    def _spooling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DiskFull(
                f"the temporary file could not be written: {error.strerror}.",
                url=self._url,
                hint=f"free space in {tempfile.gettempdir()}, or set TMPDIR; no part of this object was published.",
            ) from error

    def write(self, data: bytes, /) -> None:
        if self._spool.closed:
            raise WriteError("the object is closed.", url=self._url)
        with self._spooling():
            self._spool.write(data)

    def tell(self) -> int:
        return self._spool.tell()

    def read_back(self, start: int, size: int) -> bytes:
        with self._spooling():
            self._spool.flush()
        return read_at(self._spool.fileno(), start, size, self._url)

    def commit(self) -> None:
        """Upload the object; the store shows it only after all of it has arrived."""
        if self._spool.closed:
            raise WriteError("the object is closed.", url=self._url)
        try:
            with self._spooling():
                self._spool.flush()
                size = self._spool.tell()
                self._spool.seek(0)
            current = self._look_up()
            if _UNKNOWN not in (current, self._existing) and current not in (self._existing, _ABSENT):
                raise CommitFailed(
                    "another writer has published this name; its object is unchanged.",
                    url=self._url,
                    hint="give each writer its own names, or write=tarmac.storage.WriteOptions(overwrite=True).",
                )
            self._store.put(self._url, self._spool, size, self._storage, only_new=self._overwrite is False)
        finally:
            self.abort()

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # discarded bytes need not be flushed
            self._spool.close()
