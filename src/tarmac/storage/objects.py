"""Object stores and web servers through obstore: s3, gs, az, http and https.

obstore keeps connections open, retries with jitter, and resumes a broken body with a Range request while
the ETag is unchanged. Its threads do not survive a fork, so a process that was forked from one that has
used it sends its requests to a helper process (relay.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from tarmac.environment import is_secure
from tarmac.errors import (
    NotFound,
    ObjectChanged,
    ShortRead,
    TarmacError,
    TransferError,
    UrlError,
)
from tarmac.limits import MIB
from tarmac.storage import relay, web
from tarmac.storage.clients import is_web, requesting
from tarmac.storage.obstore_errors import translating
from tarmac.storage.store import Store
from tarmac.storage.types import ObjectInfo, Source, StorageOptions

if TYPE_CHECKING:
    from obstore import GetOptions

CHUNK = MIB // 4
UPLOAD_CHUNK = 8 * MIB
_owner: int | None = None  # the process that first used obstore


def _forked() -> bool:
    """Return whether this process was forked from one that used obstore, whose threads do not survive a fork."""
    global _owner
    if _owner is None:
        _owner = os.getpid()
    return _owner != os.getpid()


def _guarded(url: str) -> bool:
    """Return whether redirects must be checked before they are followed, which obstore does not do."""
    return is_web(url) and is_secure()


class WebStore(Store):
    """Files on web servers. Subclasses translate their URLs into requests to a web server or bucket."""

    opens_ahead = True

    def resolve(self, url: str, storage: StorageOptions, /) -> tuple[str, StorageOptions]:
        """Return the URL to request, and the options to request it with."""
        return url, storage

    def open_read(self, url: str, storage: StorageOptions, /) -> Source:
        url, storage = self.resolve(url, storage)
        if _guarded(url):
            return web.WebSource(url, storage)
        if _forked():
            return relay.RelaySource(url, storage)
        import obstore

        with requesting(url, storage) as (client, path):
            try:
                return ObjectSource(url, storage, obstore.get(client, path))
            except Exception as error:
                if is_web(url) and "MissingContentLength" in str(error):
                    return web.WebSource(url, storage)
                raise

    def stat(self, url: str, storage: StorageOptions, /) -> ObjectInfo:
        url, storage = self.resolve(url, storage)
        if _guarded(url):
            return web.stat(url, storage)
        if _forked():
            return relay.call("stat", url, storage)  # type: ignore[no-any-return]
        return web.head_or_get(partial(_stat, url, storage)) if is_web(url) else _stat(url, storage)

    def read_range(
        self, url: str, start: int, stop: int, storage: StorageOptions, version: str | None, /
    ) -> bytes:
        return bytes(self.read_buffer(url, start, stop, storage, version))

    def read_buffer(
        self, url: str, start: int, stop: int, storage: StorageOptions, version: str | None, /
    ) -> Any:
        url, storage = self.resolve(url, storage)
        if _guarded(url):
            return web.read_range(url, start, stop, storage, version)
        if _forked():
            return relay.call("read_range", url, start, stop, storage, version)
        import obstore

        with requesting(url, storage) as (client, path):
            if version is None:
                data = obstore.get_range(client, path, start=start, end=stop)
            else:
                options: GetOptions = {"range": (start, stop)}
                if condition := web.if_match(version):
                    options["if_match"] = condition
                result = obstore.get(client, path, options=options)
                web.check_version(result.meta["e_tag"], version, url)
                data = result.bytes()
        if len(data) > stop - start:
            # Observed when a broken response was resumed and the server sent more than was requested.
            raise ShortRead(f"expected {stop - start} bytes, got {len(data)}.", url=url)
        return data

    def put(
        self, url: str, file: IO[bytes], size: int, storage: StorageOptions, /, *, only_new: bool
    ) -> None:
        url, storage = self.resolve(url, storage)
        if is_web(url):
            web.put(url, file, size, storage)
            return
        if _forked():
            relay.put(url, file, size, storage, only_new=only_new)
            return
        import obstore

        parts = size > UPLOAD_CHUNK
        with requesting(url, storage) as (client, path):
            # Stores can create "only if new" in one atomic step only for an upload that is a single request.
            mode = "create" if only_new and not parts else "overwrite"
            obstore.put(client, path, file, use_multipart=parts, chunk_size=UPLOAD_CHUNK, mode=mode)  # type: ignore[arg-type]


class BucketStore(WebStore):
    """Objects in the buckets of S3, Google Cloud Storage and Azure."""

    def delete(self, url: str, storage: StorageOptions, /) -> None:
        if _forked():
            relay.call("delete", url, storage)
            return
        import obstore

        with contextlib.suppress(NotFound), requesting(url, storage) as (client, path):
            obstore.delete(client, path)

    def list_objects(self, prefix: str, storage: StorageOptions, /) -> Iterator[tuple[str, ObjectInfo]]:
        if not prefix.partition("://")[2].partition("/")[1]:
            raise UrlError("expected BUCKET/ in the URL; a bucket name cannot be a pattern.", url=prefix)
        pages = relay.list_pages(prefix, storage) if _forked() else list_pages(prefix, storage)
        for page in pages:
            yield from page


def _stat(url: str, storage: StorageOptions, method: str = "HEAD") -> ObjectInfo:
    import obstore

    with requesting(url, storage) as (client, path):
        if method == "GET":
            meta = obstore.get(client, path, options={"range": (0, 1)}).meta
        else:
            meta = obstore.head(client, path)
    return ObjectInfo(meta["size"], meta["e_tag"])


def list_pages(url: str, storage: StorageOptions) -> Iterator[relay.Listing]:
    """Yield the objects under a prefix like `s3://bucket/train/`, a page at a time."""
    import obstore

    with requesting(url, storage) as (client, prefix):
        base = url.removesuffix(prefix)
        folder = prefix.rpartition("/")[0]  # obstore lists by whole directories
        for page in obstore.list(client, folder or None):
            yield [
                (base + item["path"], ObjectInfo(item["size"], item["e_tag"]))
                for item in page
                if item["path"].startswith(prefix)
            ]


class ObjectSource(Source):
    """The body of an object, resumed by obstore when the connection breaks."""

    def __init__(self, url: str, storage: StorageOptions, result: Any) -> None:
        self._url = url
        self._storage = storage
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
            with translating(self._url):
                chunk = next(self._chunks, None)
        except TarmacError as error:
            raise self._broken(error) from None
        self._received += 0 if chunk is None else len(chunk)
        if self._received > self.length or (chunk is None and self._received < self.length):
            raise ShortRead(
                f"expected {self.length} bytes, got {self._received}.",
                url=self._url,
                offset=self._received,
            )
        return b"" if chunk is None else bytes(chunk)

    def _broken(self, result: TarmacError) -> TarmacError:
        """Return the reason why the body ended early; obstore gives none when the object was replaced."""
        if type(result) in (ShortRead, TransferError) and self.version is not None:
            with contextlib.suppress(TarmacError):
                if WebStore().stat(self._url, self._storage).version != self.version:
                    result = ObjectChanged("the object was replaced while it was being read.", url=self._url)
        result.offset = self._received
        return result

    def close(self) -> None:
        self._chunks = iter(())
        self._chunk = b""
