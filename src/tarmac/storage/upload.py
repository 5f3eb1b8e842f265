"""A target in an object store or on a web server: collected on disk, sent at the end."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

from tarmac.errors import CommitFailed, DiskFull, NotFound, TarmacError, WriteError
from tarmac.limits import MIB
from tarmac.storage.types import ObjectInfo, StorageOptions, WriteOptions

__all__ = ["UploadSink"]

_ABSENT = object()
_UNKNOWN = object()


class UploadSink:
    """Collect an object in an unnamed local file, then upload it.

    Nothing reaches the store before commit, so an abandoned or killed writer leaves neither an object
    nor the hidden remains of an unfinished upload.
    """

    def __init__(
        self,
        url: str,
        options: StorageOptions,
        write: WriteOptions,
        stat: Callable[[str, StorageOptions], ObjectInfo],
        put: Callable[..., None],
    ) -> None:
        self._url = url
        self._options = options
        self._overwrite = write.overwrite
        self._stat = stat
        self._put = put
        self._found = self._look()
        if self._overwrite is False and self._found is not _ABSENT:
            raise CommitFailed("the object exists.", url=url, hint="overwrite=True, or another name.")
        with self._spooling():
            self._spool: IO[bytes] = tempfile.TemporaryFile(buffering=MIB)  # noqa: SIM115

    def _look(self) -> object:
        """Say which version is under the name now; some may write a store but not look into it."""
        if self._overwrite:
            return _UNKNOWN
        try:
            return self._stat(self._url, self._options)
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
                hint=f"free space in {tempfile.gettempdir()}, or set TMPDIR; nothing was published.",
            ) from error

    def write(self, data: bytes, /) -> None:
        """Take in bytes."""
        if self._spool.closed:
            raise WriteError("the object is closed.", url=self._url)
        with self._spooling():
            self._spool.write(data)

    def commit(self) -> None:
        """Upload; the store shows the object only when all of it has arrived."""
        if self._spool.closed:
            raise WriteError("the object is closed.", url=self._url)
        try:
            with self._spooling():
                self._spool.flush()
                size = self._spool.tell()
                self._spool.seek(0)
            now = self._look()
            if _UNKNOWN not in (now, self._found) and now not in (self._found, _ABSENT):
                raise CommitFailed(
                    "another writer has published this name meanwhile; its object is untouched.",
                    url=self._url,
                    hint="give each writer its own names, or overwrite=True.",
                )
            self._put(self._url, self._spool, size, self._options, new=self._overwrite is False)
        finally:
            self._discard()

    def abort(self) -> None:
        """Forget everything."""
        self._discard()

    def _discard(self) -> None:
        spool: Any = self._spool
        with contextlib.suppress(OSError):  # what is thrown away need not be flushed
            spool.close()
