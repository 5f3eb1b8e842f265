"""The protocol between tarmac and a store of files or objects."""

from __future__ import annotations

import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, ClassVar

from tarmac.errors import TransferError, UnsupportedScheme, WriteError
from tarmac.storage.types import ObjectInfo, Sink, Source, StorageOptions, WriteOptions

GLOB = re.compile(r"[*?\[]")
_GLOB_PARTS = re.compile(r"\*\*/?|\*|\?|\[(!?)(\]?[^\]]*)\]|.", re.DOTALL)


class Store(ABC):
    """Opens, lists and writes the URLs of one scheme; `tarmac.register_scheme` makes it known.

    Only `open_read` is required. With `stat` and `read_range`, `Dataset` reads single samples; with
    `list_objects`, globs work; with `put`, writers do; with `delete`, jobs remove what they no longer need. Methods
    get the whole URL and raise `tarmac.errors.NotFound` for one that does not exist. Methods may run in several
    threads at once.

    Worker processes that are started with "spawn" do not inherit registrations: register the scheme in a
    module that they import.
    """

    is_stream: ClassVar[bool] = False
    """Whether a URL names a stream that can be read only once, from start to end."""
    opens_ahead: ClassVar[bool] = False
    """Whether a reader of several URLs may open the next ones early, in other threads, and perhaps in vain."""

    @abstractmethod
    def open_read(self, url: str, storage: StorageOptions, /) -> Source:
        """Open an object for reading from start to end."""

    def stat(self, url: str, storage: StorageOptions, /) -> ObjectInfo:
        """Return the size and version of an object without reading it."""
        with self.open_read(url, storage) as source:
            if source.length is None:
                raise UnsupportedScheme("the store does not report the size of objects.", url=url)
            return ObjectInfo(source.length, source.version)

    def read_range(
        self, url: str, start: int, stop: int, storage: StorageOptions, version: str | None, /
    ) -> bytes:
        """Return the bytes from `start` up to `stop`, fewer only at the end of the object.

        Raise `ObjectChanged` if `version` is given and the object has another version.
        """
        raise UnsupportedScheme(
            "the store can only be read from start to end.",
            url=url,
            hint="a `cache`, which downloads whole shards.",
        )

    def read_buffer(
        self, url: str, start: int, stop: int, storage: StorageOptions, version: str | None, /
    ) -> Any:
        """Return the same bytes in any object that has a buffer, which may save a copy."""
        return self.read_range(url, start, stop, storage, version)

    def list_objects(self, prefix: str, storage: StorageOptions, /) -> Iterable[tuple[str, ObjectInfo]]:
        """Yield the URL, size and version of every object whose URL begins with `prefix`, in any order."""
        raise UnsupportedScheme("the store cannot be listed.", url=prefix, hint="a list of URLs.")

    def delete(self, url: str, storage: StorageOptions, /) -> None:
        """Delete an object; one that does not exist is not an error."""
        raise UnsupportedScheme("the store cannot delete objects.", url=url)

    def put(
        self, url: str, file: IO[bytes], size: int, storage: StorageOptions, /, *, only_new: bool
    ) -> None:
        """Store the content of an open file under a URL, in one atomic step.

        With `only_new`, raise `CommitFailed` if the object exists.
        """
        raise UnsupportedScheme("the store is read-only.", url=url)

    def open_write(self, url: str, storage: StorageOptions, write: WriteOptions, /) -> Sink:
        """Open an object for writing. By default its bytes are collected on disk and passed to `put`."""
        if type(self).put is Store.put:
            raise UnsupportedScheme("the store is read-only.", url=url)
        from tarmac.storage.upload import UploadSink

        return UploadSink(self, url, storage, write)

    @property
    def can_list(self) -> bool:
        """Whether the store implements `list_objects`, so that `*`, `?` and `[` in a URL form a pattern."""
        return type(self).list_objects is not Store.list_objects

    def glob(self, pattern: str, storage: StorageOptions, /) -> Iterator[str]:
        """Yield the URLs that match a pattern. `*` and `?` stay within a directory, `**` does not."""
        matches = re.compile(_glob_regex(pattern)).fullmatch
        fixed = GLOB.split(pattern, maxsplit=1)[0]
        prefix = fixed[: max(fixed.rfind("/"), fixed.find(":")) + 1]
        return (url for url, _ in self.list_objects(prefix, storage) if matches(url))


def _glob_regex(pattern: str) -> str:
    parts = []
    for match in _GLOB_PARTS.finditer(pattern):
        part = match[0]
        if part.startswith("**"):
            parts.append("(?:.*/)?" if part.endswith("/") else ".*")
        elif part in "*?":
            parts.append("[^/]*" if part == "*" else "[^/]")
        elif match[2]:
            members = re.sub(r"([\\\[\]^])", r"\\\1", match[2])
            parts.append(f"[^/{members}]" if match[1] else f"[{members}]")
        else:
            parts.append(re.escape(part))
    return "(?s:" + "".join(parts) + ")"


class FileStore(Store):
    """A store made of functions that open binary file objects, such as those of fsspec.

    `opener(url)` opens a URL for reading; `writer(url)` opens one for writing, and closing the file publishes
    it. A file object with a method `abort` is aborted instead of closed if writing fails. Sizes and
    ranges need file objects that can seek.
    """

    def __init__(
        self, opener: Callable[[str], IO[bytes]], writer: Callable[[str], IO[bytes]] | None = None
    ) -> None:
        self._opener = opener
        self._writer = writer

    def open_read(self, url: str, storage: StorageOptions, /) -> Source:
        return FileSource(self._opener(url))

    def open_write(self, url: str, storage: StorageOptions, write: WriteOptions, /) -> Sink:
        if self._writer is None:
            raise UnsupportedScheme("the store is read-only.", url=url)
        return FileSink(self._writer(url), close=True)

    def stat(self, url: str, storage: StorageOptions, /) -> ObjectInfo:
        with FileSource(self._opener(url)) as source:
            return ObjectInfo(source.seek(0, io.SEEK_END, url), None)

    def read_range(
        self, url: str, start: int, stop: int, storage: StorageOptions, version: str | None, /
    ) -> bytes:
        parts = []
        with FileSource(self._opener(url)) as source:
            source.seek(start, io.SEEK_SET, url)
            while start < stop and (part := source.read(stop - start)):  # a raw file may return fewer bytes
                parts.append(part)
                start += len(part)
        return b"".join(parts)


class FileSource(Source):
    """A binary file object as a source."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int, /) -> bytes:
        return self._file.read(size)

    def seek(self, offset: int, whence: int, url: str) -> int:
        """Move to a position and return it; raise if the file cannot seek."""
        try:
            return self._file.seek(offset, whence)
        except (AttributeError, io.UnsupportedOperation):
            raise TransferError("the file object can only be read from start to end.", url=url) from None

    def close(self) -> None:
        self._file.close()


class FileSink:
    """A binary file object as a sink. With `close`, the file is closed at the end."""

    def __init__(self, file: Any, *, close: bool) -> None:
        self._file = file
        self._close = close

    def write(self, data: bytes, /) -> None:
        """Write all bytes; an unbuffered file may accept only some of them per call."""
        done = self._file.write(data)
        while isinstance(done, int) and done < len(data):
            if not done:
                raise WriteError("the file object does not accept more bytes.")
            data = data[done:]
            done = self._file.write(data)
        if done is None and isinstance(self._file, io.RawIOBase):
            raise WriteError("the file object would block.", hint="os.set_blocking(file.fileno(), True).")

    def commit(self) -> None:
        """Flush the file, and close it if it is ours."""
        try:
            if hasattr(self._file, "flush"):
                self._file.flush()
        finally:
            if self._close:
                self._file.close()

    def abort(self) -> None:
        """Abort the file if it is ours and can abort; else close it, which keeps what was written."""
        if self._close:
            getattr(self._file, "abort", self._file.close)()
