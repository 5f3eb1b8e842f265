"""HTTP features that obstore lacks: bodies of unknown length, uploads and checked redirects.

A chunked body ends with its last chunk or with an error. A body that ends when the connection closes is
validated by the end-of-archive marker. Secure mode reads all web servers through this module, because
obstore follows every redirect.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import time
from collections.abc import Callable
from typing import IO, TypeVar

from tarmac.errors import (
    AccessDenied,
    ConnectFailed,
    ObjectChanged,
    ShortRead,
    Stalled,
    TarmacError,
    TransferError,
)
from tarmac.storage.httprequest import Budget, network_errors, request
from tarmac.storage.obstore_errors import no_ranges
from tarmac.storage.types import ObjectInfo, Source, StorageOptions

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
T = TypeVar("T")


class WebSource(Source):
    """The body of a response, with or without a known length.

    A broken body is resumed if its length and version are known. Its time is bounded by
    `StorageOptions.total_timeout`, its size by its length or by `StorageOptions.max_unsized_bytes`.
    """

    def __init__(self, url: str, storage: StorageOptions) -> None:
        self._url, self._storage = url, storage
        self._budget = Budget(url, storage)
        self._response = _request("GET", url, storage, {}, self._budget)
        if self._response.status == 206:
            self.close()
            raise TransferError("expected the whole file, got a part of it.", url=url)
        self.version = self._response.getheader("ETag")
        self.length = self._response.length
        self._received = 0
        self._resumes = storage.retries

    def read(self, size: int, /) -> bytes:
        while True:
            try:
                data = self._read(size)
                if not data and self.length is not None and self._received < self.length:
                    raise ShortRead(
                        f"expected {self.length} bytes, got {self._received}.",
                        url=self._url,
                        offset=self._received,
                    )
                break
            except (ShortRead, Stalled) as error:
                self._resume(error)
        self._received += len(data)
        if self.length is None and self._received > self._storage.max_unsized_bytes:
            raise TransferError(
                f"the server sent more than {self._storage.max_unsized_bytes} bytes without a Content-Length.",
                url=self._url,
                offset=self._received,
                hint="raise StorageOptions.max_unsized_bytes if the file is that large.",
            )
        return data

    def _read(self, size: int) -> bytes:
        try:
            self._budget.wait()  # buffered bytes count against the total timeout, too
            return self._response.read1(size)
        except TarmacError:
            raise
        except TimeoutError:
            raise Stalled("the server stopped sending.", url=self._url) from None
        except http.client.HTTPException:
            raise ShortRead("the connection closed in the middle of a chunk.", url=self._url) from None
        except OSError as error:
            raise ShortRead(f"the connection broke: {error.strerror}.", url=self._url) from None

    def _resume(self, error: TransferError) -> None:
        """Request the remaining bytes if the version proves that the object is the same; else raise."""
        condition = if_match(self.version)
        if self.length is None or condition is None or not self._resumes:
            raise error
        self._resumes -= 1
        self.close()
        headers = {"Range": f"bytes={self._received}-", "If-Match": condition}
        self._response = _request("GET", self._url, self._storage, headers, self._budget)
        check_version(self._response.getheader("ETag"), self.version, self._url)
        if _content_range(self._response) != (self._received, self.length, self.length):
            raise error

    def close(self) -> None:
        self._response.close()


def head_or_get(ask: Callable[[str], T]) -> T:
    """Return `ask("HEAD")`, or `ask("GET")` if HEAD is rejected, as with a URL that is signed for GET only."""
    try:
        return ask("HEAD")
    except TarmacError as error:
        if type(error) in (AccessDenied, TransferError):
            with contextlib.suppress(TarmacError):
                return ask("GET")
        raise


def stat(url: str, storage: StorageOptions) -> ObjectInfo:
    """Return the size and ETag of a file."""
    headers = {"HEAD": {}, "GET": {"Range": "bytes=0-0"}}
    with head_or_get(lambda method: _request(method, url, storage, headers[method])) as response:
        span = _content_range(response)
    size = response.getheader("Content-Length", "") if span is None else str(span[2])
    if not re.fullmatch(r"[0-9]{1,18}", size):
        raise TransferError("the server does not report the size of the file.", url=url)
    return ObjectInfo(int(size), response.getheader("ETag"))


def read_range(url: str, start: int, stop: int, storage: StorageOptions, version: str | None = None) -> bytes:
    """Return the bytes from `start` up to `stop`, fewer only at the end of the file."""
    headers = {"Range": f"bytes={start}-{stop - 1}"}
    if condition := if_match(version):
        headers["If-Match"] = condition

    def attempt() -> bytes:
        data = bytearray()
        with request("GET", url, storage, headers) as response, network_errors(url):
            span = _content_range(response)
            if span is None or span[0] != start or span[1] > stop or (span[1] < stop and span[1] != span[2]):
                raise no_ranges(url)
            check_version(response.getheader("ETag"), version, url)
            size = span[1] - start
            while len(data) < size and (chunk := response.read1(size - len(data))):
                data.extend(chunk)
            if len(data) < size:
                raise ConnectFailed(f"expected {size} bytes, got {len(data)}.", url=url)
            return bytes(data)

    return _with_retries(storage, attempt)


def put(url: str, file: IO[bytes], size: int, storage: StorageOptions) -> None:
    """Upload a file with PUT. `Expect: 100-continue` lets a server redirect before the body is sent."""
    headers = {"Content-Length": str(size), "Expect": "100-continue"}

    def attempt() -> None:
        with request("PUT", url, storage, headers, body=file) as response, network_errors(url):
            response.read()

    _with_retries(storage, attempt)


def if_match(version: str | None) -> str | None:
    """Return the value for If-Match. Weak tags never match there (RFC 9110), so they are only compared."""
    return None if version is None or version.startswith("W/") else version


def check_version(etag: str | None, version: str | None, url: str) -> None:
    """Raise if the ETag of a response differs from the expected version: servers may ignore If-Match.

    A weak tag and a strong one with the same text are the same version. A response without an ETag may
    have any version, so it is an error if one is expected.
    """
    if version is None:
        return
    if etag is None:
        raise ObjectChanged("the response has no ETag, so the object may have been replaced.", url=url)
    if etag.removeprefix("W/") != version.removeprefix("W/"):
        raise ObjectChanged("the object was replaced: its ETag has changed.", url=url)


def _content_range(response: http.client.HTTPResponse) -> tuple[int, int, int] | None:
    """Return start, stop and total size of a partial response; None if it is not one."""
    match = _CONTENT_RANGE.fullmatch(response.getheader("Content-Range", ""))
    if response.status != 206 or match is None or match[3] == "*":
        return None
    return int(match[1]), int(match[2]) + 1, int(match[3])


def _request(
    method: str, url: str, storage: StorageOptions, headers: dict[str, str], budget: Budget | None = None
) -> http.client.HTTPResponse:
    return _with_retries(storage, lambda: request(method, url, storage, headers, budget=budget))


def _with_retries(storage: StorageOptions, attempt: Callable[[], T]) -> T:
    """Retry while the server is unreachable or busy, with exponential backoff and jitter."""
    deadline = time.monotonic() + storage.retry_timeout
    pause = storage.backoff
    for _ in range(storage.retries):
        try:
            return attempt()
        except ConnectFailed:
            wait = random.uniform(0, pause)
            if time.monotonic() + wait > deadline:
                raise
            time.sleep(wait)
            pause = min(pause * 2, storage.max_backoff)
    return attempt()
