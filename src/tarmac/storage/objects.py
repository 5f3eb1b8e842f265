"""Object stores and web servers through obstore: s3, gs, az, http and https.

obstore keeps connections open, retries with jitter, and resumes a broken body with a Range request as
long as the ETag holds. Its runtime does not survive a fork, so a process that was forked from one
that used it hands its requests to a helper process (relay.py).
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Any

from tarmac.errors import (
    AccessDenied,
    ObjectChanged,
    ShortRead,
    TarmacError,
    TooManyShards,
    TransferError,
)
from tarmac.limits import MIB
from tarmac.storage import relay, web
from tarmac.storage.failures import translate, translating
from tarmac.storage.security import is_secure
from tarmac.storage.stores import is_web, locate
from tarmac.storage.types import ObjectInfo, Sink, Source, StorageOptions, WriteOptions
from tarmac.storage.upload import UploadSink
from tarmac.storage.versions import check_version, if_match

if TYPE_CHECKING:
    from obstore import GetOptions

__all__ = [
    "ObjectSource",
    "list_infos",
    "list_objects",
    "open_read",
    "open_write",
    "put",
    "read_range",
    "stat",
]

CHUNK = MIB // 4
UPLOAD_CHUNK = 8 * MIB
_owner: int | None = None  # the process that first used obstore


def _forked() -> bool:
    """Whether a parent of this process has used obstore, whose threads did not come along."""
    global _owner
    if _owner is None:
        _owner = os.getpid()
    return _owner != os.getpid()


def _guarded(url: str) -> bool:
    """Whether redirects must be looked at before they are followed, which obstore does not do."""
    return is_web(url) and is_secure()


def open_read(url: str, options: StorageOptions) -> Source:
    """Open an object for reading from front to back."""
    if _guarded(url):
        return web.WebSource(url, options)
    if _forked():
        return relay.open_read(url, options)
    import obstore

    store, path = locate(url, options)
    try:
        result = obstore.get(store, path)
    except Exception as error:
        if is_web(url) and "MissingContentLength" in str(error):
            return web.WebSource(url, options)
        raise translate(error, url) from None
    return ObjectSource(url, options, result)


def open_write(url: str, options: StorageOptions, write: WriteOptions) -> Sink:
    """Begin an object that appears only when it is whole."""
    return UploadSink(url, options, write, stat, put)


def stat(url: str, options: StorageOptions) -> ObjectInfo:
    """Return size and ETag."""
    if _guarded(url):
        return web.stat(url, options)
    if _forked():
        return relay.call("stat", url, options)  # type: ignore[no-any-return]
    import obstore

    store, path = locate(url, options)
    try:
        with translating(url):
            meta = obstore.head(store, path)
    except TarmacError as refusal:
        if not is_web(url) or type(refusal) not in (AccessDenied, TransferError):
            raise
        # A URL signed for GET answers to nothing else, so ask for the first byte instead.
        try:
            with translating(url):
                meta = obstore.get(store, path, options={"range": (0, 1)}).meta
        except TarmacError:
            raise refusal from None
    return ObjectInfo(meta["size"], meta["e_tag"])


def read_range(url: str, start: int, stop: int, options: StorageOptions, version: str | None = None) -> bytes:
    """Return the bytes from `start` up to `stop`; fewer only at the end of the object.

    An answer with another ETag than `version` is an error, never part of a mixture.
    """
    if _guarded(url):
        return web.read_range(url, start, stop, options, version)
    if _forked():
        return relay.call("read_range", url, start, stop, options, version)  # type: ignore[no-any-return]
    import obstore

    store, path = locate(url, options)
    with translating(url):
        if version is None:
            data = bytes(obstore.get_range(store, path, start=start, end=stop))
        else:
            asked: GetOptions = {"range": (start, stop)}
            if condition := if_match(version):
                asked["if_match"] = condition
            found = obstore.get(store, path, options=asked)
            check_version(found.meta["e_tag"], version, url)
            data = bytes(found.bytes())
    if len(data) > stop - start:
        # Seen when a broken reply was resumed and the server then sent more than was asked for.
        raise ShortRead(f"{len(data)} bytes arrived where {stop - start} were asked for.", url=url)
    return data


def list_objects(url: str, pattern: str, most: int, options: StorageOptions) -> list[str]:
    """Return the URLs under a prefix like `s3://bucket/train/` that match an expression, sorted."""
    if _forked():
        return relay.call("list_objects", url, pattern, most, options)  # type: ignore[no-any-return]
    import obstore

    store, prefix = locate(url, options)
    base = url.removesuffix(prefix)
    matches = re.compile(pattern).fullmatch
    found: list[str] = []
    with translating(url):
        for page in obstore.list(store, prefix.strip("/") or None):
            found += filter(matches, (base + item["path"] for item in page))
            if len(found) > most:
                raise TooManyShards(f"more than {most} objects match.", url=url, hint="raise Limits.shards.")
    return sorted(found)


def list_infos(url: str, most: int, options: StorageOptions) -> list[tuple[str, ObjectInfo]]:
    """Return the URLs under a prefix like `s3://bucket/train/`, sorted, with sizes and versions."""
    if _forked():
        return relay.call("list_infos", url, most, options)  # type: ignore[no-any-return]
    import obstore

    store, prefix = locate(url, options)
    base = url.removesuffix(prefix)
    found: list[tuple[str, ObjectInfo]] = []
    with translating(url):
        for page in obstore.list(store, prefix.strip("/") or None):
            found += ((base + item["path"], ObjectInfo(item["size"], item["e_tag"])) for item in page)
            if len(found) > most:
                raise TooManyShards(f"more than {most} objects are there.", url=url)
    return sorted(found, key=lambda item: item[0])


class ObjectSource(Source):
    """The body of an object, resumed by obstore when the connection breaks."""

    def __init__(self, url: str, options: StorageOptions, result: Any) -> None:
        self._url = url
        self._options = options
        self.length: int = result.range[1] - result.range[0]
        self.version = result.meta["e_tag"]
        self._received = 0
        self._chunks = iter(result.stream(min_chunk_size=CHUNK))
        self._chunk, self._position = b"", 0

    def read(self, size: int, /) -> bytes:
        if self._position >= len(self._chunk):
            self._chunk, self._position = self._next(), 0
        data = self._chunk[self._position : self._position + size]
        self._position += len(data)
        return data

    def _next(self) -> bytes:
        try:
            chunk = next(self._chunks, None)
        except Exception as error:
            raise self._broken(error) from None
        self._received += 0 if chunk is None else len(chunk)
        if self._received > self.length or (chunk is None and self._received < self.length):
            raise ShortRead(
                f"{self._received} bytes arrived, the server announced {self.length}.",
                url=self._url,
                offset=self._received,
            )
        return b"" if chunk is None else bytes(chunk)

    def _broken(self, error: Exception) -> TarmacError:
        """Say why the body ended early: obstore gives up without a word when the object was replaced."""
        found = translate(error, self._url)
        if type(found) in (ShortRead, TransferError) and self.version is not None:
            with contextlib.suppress(TarmacError):
                if stat(self._url, self._options).version != self.version:
                    found = ObjectChanged("the object was replaced while it was being read.", url=self._url)
        found.offset = self._received
        return found

    def close(self) -> None:
        self._chunks = iter(())
        self._chunk = b""


def put(url: str, file: Any, size: int, options: StorageOptions, *, new: bool = False) -> None:
    """Send an open file to a URL, in parts where the store knows parts; `new` refuses to replace."""
    if is_web(url):
        web.put(url, file, size, options)
        return
    if _forked():
        relay.put(url, file, size, options, new=new)
        return
    import obstore

    store, path = locate(url, options)
    parts = size > UPLOAD_CHUNK
    with translating(url):
        # Stores refuse to replace in one atomic step only what comes in one piece.
        mode = "create" if new and not parts else "overwrite"
        obstore.put(store, path, file, use_multipart=parts, chunk_size=UPLOAD_CHUNK, mode=mode)  # type: ignore[arg-type]
