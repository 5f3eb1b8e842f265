"""Object stores and web servers through obstore: s3, gs, az, http and https.

obstore keeps connections open, retries with jitter, and resumes a broken body with a Range request as
long as the ETag holds. Its runtime does not survive a fork, so a process that was forked from one
that used it hands its requests to a helper process (relay.py).
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import re
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from tarmac import environment
from tarmac.errors import (
    AccessDenied,
    CommitFailed,
    ConnectFailed,
    NotFound,
    ObjectChanged,
    ShortRead,
    Stalled,
    TarmacError,
    TransferError,
    redact,
)
from tarmac.limits import MIB
from tarmac.storage import relay, web
from tarmac.storage.types import ObjectInfo, Sink, Source, StorageOptions, WriteOptions

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

__all__ = ["ObjectSource", "UploadSink", "list_objects", "open_read", "open_write", "read_range", "stat"]

CHUNK = 1 * MIB
UPLOAD_CHUNK = 8 * MIB
_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_owner: int | None = None  # the process that first used obstore


def _forked() -> bool:
    """Whether a parent of this process has used obstore, whose threads did not come along."""
    global _owner
    if _owner is None:
        _owner = os.getpid()
    return _owner != os.getpid()


def open_read(url: str, options: StorageOptions) -> Source:
    """Open an object for reading from front to back."""
    if _forked():
        return relay.open_read(url, options)
    import obstore

    store, path = _locate(url, options)
    try:
        result = obstore.get(store, path)
    except Exception as error:
        if web.lacks_length(error):
            return web.WebSource(url, options)
        raise translate(error, url) from None
    return ObjectSource(url, result)


def open_write(url: str, options: StorageOptions, write: WriteOptions) -> Sink:
    """Begin an object that appears only when it is whole."""
    return UploadSink(url, options, write)


def stat(url: str, options: StorageOptions) -> ObjectInfo:
    """Return size and ETag."""
    if _forked():
        return relay.call("stat", url, options)  # type: ignore[no-any-return]
    import obstore

    store, path = _locate(url, options)
    with translating(url):
        meta = obstore.head(store, path)
    return ObjectInfo(meta["size"], meta["e_tag"])


def read_range(url: str, start: int, stop: int, options: StorageOptions) -> bytes:
    """Return the bytes from `start` up to `stop`."""
    if _forked():
        return relay.call("read_range", url, start, stop, options)  # type: ignore[no-any-return]
    import obstore

    store, path = _locate(url, options)
    with translating(url):
        return bytes(obstore.get_range(store, path, start=start, end=stop))


def list_objects(url: str, options: StorageOptions) -> list[str]:
    """Return the URLs of all objects under a prefix such as `s3://bucket/train/`, sorted."""
    if _forked():
        return relay.call("list_objects", url, options)  # type: ignore[no-any-return]
    import obstore

    store, path = _locate(url, options)
    parts = urlsplit(url)
    with translating(url):
        found = [item["path"] for page in obstore.list(store, path or None) for item in page]
    return sorted(f"{parts.scheme}://{parts.netloc}/{name}" for name in found)


class ObjectSource(Source):
    """The body of an object, resumed by obstore when the connection breaks."""

    def __init__(self, url: str, result: Any) -> None:
        self._url = url
        self.length: int = result.range[1] - result.range[0]
        self._received = 0
        self._chunks = iter(result.stream(min_chunk_size=CHUNK))
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        data = self._rest or self._next()
        self._rest = data[size:]
        return data[:size] if self._rest else data

    def _next(self) -> bytes:
        with translating(self._url):
            chunk = next(self._chunks, None)
        if chunk is None:
            if self._received != self.length:
                raise ShortRead(
                    f"{self._received} bytes arrived, the server announced {self.length}.", url=self._url
                )
            return b""
        self._received += len(chunk)
        return chunk.to_bytes() if hasattr(chunk, "to_bytes") else bytes(chunk)

    def close(self) -> None:
        self._chunks = iter(())


class UploadSink:
    """Collect an object in an unnamed local file, then upload it in parts.

    Nothing reaches the store before commit, so an abandoned or killed writer leaves neither an object
    nor the hidden remains of an unfinished upload.
    """

    def __init__(self, url: str, options: StorageOptions, write: WriteOptions) -> None:
        self._url = url
        self._options = options
        self._write = write
        self._check_absent()
        self._spool = tempfile.TemporaryFile(buffering=CHUNK)  # noqa: SIM115

    def _check_absent(self) -> None:
        if self._write.overwrite is False:
            with contextlib.suppress(NotFound):
                stat(self._url, self._options)
                raise CommitFailed(
                    "the object exists.", url=self._url, hint="overwrite=True, or another name."
                )

    def write(self, data: bytes, /) -> None:
        """Take in bytes."""
        self._spool.write(data)

    def commit(self) -> None:
        """Upload; the store shows the object only when all of it has arrived."""
        try:
            self._spool.flush()
            self._check_absent()
            size = self._spool.tell()
            self._spool.seek(0)
            upload(self._url, self._spool, size, self._options)
        finally:
            self._spool.close()

    def abort(self) -> None:
        """Forget everything."""
        self._spool.close()


def upload(url: str, file: Any, size: int, options: StorageOptions) -> None:
    """Send an open file to a URL, in parts where the store knows parts."""
    if url.startswith(("http:", "https:")):
        web.put(url, file, size, options)
        return
    if _forked():
        relay.upload(url, file, size, options)
        return
    import obstore

    store, path = _locate(url, options)
    with translating(url):
        obstore.put(store, path, file, use_multipart=size > UPLOAD_CHUNK, chunk_size=UPLOAD_CHUNK)


def _locate(url: str, options: StorageOptions) -> tuple[ObjectStore, str]:
    """Find the store for a URL and the path within it. Stores are kept, and with them connections."""
    parts = urlsplit(url)
    frozen = tuple(sorted(options.config.items())), tuple(sorted(options.headers.items()))
    if parts.scheme in ("http", "https"):
        # One client per server where the path survives obstore's escaping; else one for this very URL.
        plain = not parts.query and _PLAIN_PATH.fullmatch(parts.path)
        base = urlunsplit((parts.scheme, parts.netloc, "" if plain else parts.path, parts.query, ""))
        return _store(base, options=_Frozen(options, *frozen)), parts.path.lstrip("/") if plain else ""
    path = unquote(parts.path) if parts.scheme != "s3" else parts.path
    return _store(f"{parts.scheme}://{parts.netloc}", options=_Frozen(options, *frozen)), path.lstrip("/")


class _Frozen:
    """Options as a dictionary key."""

    def __init__(self, options: StorageOptions, *parts: object) -> None:
        self.options = options
        o = options
        self._key = (*parts, o.connect, o.idle, o.total, o.retries, o.retry_time, o.backoff, o.max_backoff)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self._key == other._key


@functools.lru_cache(maxsize=128)
def _store(base: str, options: _Frozen) -> ObjectStore:
    from obstore.store import HTTPStore, from_url

    plain = options.options
    headers = dict(plain.headers)
    retry = _retry(plain)
    if base.startswith(("http://", "https://")):
        base, login = _without_login(base)
        headers.update(login)
        return HTTPStore(base, client_options=_client(plain, headers, http=True), retry_config=retry)
    endpoint = (
        plain.config.get("endpoint") or plain.config.get("aws_endpoint") or environment.s3_endpoint() or ""
    )
    client = _client(plain, headers, http=endpoint.startswith("http://") or base.startswith("gs://"))
    try:
        return from_url(base, config=dict(plain.config), client_options=client, retry_config=retry)  # type: ignore[call-overload,no-any-return]
    except Exception as error:
        raise translate(error, base) from None


def _without_login(url: str) -> tuple[str, dict[str, str]]:
    """Turn `user:password@` in a URL into a header."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    token = base64.b64encode(unquote(login).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {token}"}


def _client(options: StorageOptions, headers: dict[str, str], *, http: bool) -> ClientConfig:
    config: ClientConfig = {
        "allow_http": http,
        "connect_timeout": timedelta(seconds=options.connect),
        "read_timeout": timedelta(seconds=options.idle),
        "timeout": timedelta(seconds=options.total),
        "user_agent": "tarmac",
    }
    if headers:
        config["default_headers"] = headers
    return config


def _retry(options: StorageOptions) -> RetryConfig:
    return {
        "max_retries": options.retries,
        "retry_timeout": timedelta(seconds=options.retry_time),
        "backoff": {
            "init_backoff": timedelta(seconds=options.backoff),
            "max_backoff": timedelta(seconds=max(options.backoff, options.max_backoff)),
            "base": 2,
        },
    }


@contextlib.contextmanager
def translating(url: str) -> Iterator[None]:
    """Turn obstore's errors into tarmac's. The cause is dropped: it may hold a signed URL."""
    try:
        yield
    except TarmacError:
        raise
    except Exception as error:
        raise translate(error, url) from None


_SIGNS: list[tuple[type[TarmacError], str]] = [
    (
        AccessDenied,
        r"\b(401|403)\b|Unauthorized|Forbidden|AccessDenied|SignatureDoesNotMatch|InvalidAccessKeyId",
    ),
    (NotFound, r"\b404\b|NoSuchKey|NoSuchBucket|not found"),
    (Stalled, r"timed ?out|TimedOut|timeout elapsed|operation timed"),
    (ObjectChanged, r"precondition|e_tag|ETag|Content-Range|NotPartial|UnexpectedRange|changed"),
    (ShortRead, r"body error|Interrupted|IncompleteMessage|Body|Decode"),
    (ConnectFailed, r"error sending request|Connect|dns error|retries|redirect|status code: \d"),
]


def translate(error: Exception, url: str) -> TarmacError:
    """Choose the error that says what a user can do about it."""
    text = redact(str(error))
    message = text.partition("\n\nDebug source")[0]
    message = " ".join(message.split())[:400].rstrip(".") + "."
    if isinstance(error, FileNotFoundError):
        return NotFound(message, url=url)
    if isinstance(error, PermissionError) or type(error).__name__ in (
        "PermissionDeniedError",
        "UnauthenticatedError",
    ):
        return AccessDenied(message, url=url)
    if type(error).__name__ == "PreconditionError":
        return ObjectChanged(message, url=url)
    for kind, pattern in _SIGNS:
        if re.search(pattern, text):
            return kind(message, url=url)
    return TransferError(message, url=url)
