"""What obstore does not do over HTTP: bodies of unknown length, uploads and guarded redirects.

Plain standard library, and nothing silent: a chunked body ends with its last chunk or with an error; a body
that ends when the connection closes is judged by the tar end mark. Secure mode reads all web servers this
way, because obstore follows redirects wherever they lead.
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
    ShortRead,
    Stalled,
    TarmacError,
    TransferError,
)
from tarmac.storage.exchange import Budget, Exchange, network_errors, request
from tarmac.storage.types import ObjectInfo, Source, StorageOptions
from tarmac.storage.versions import check_version, if_match

__all__ = ["WebSource", "put", "read_range", "stat"]

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
T = TypeVar("T")


class WebSource(Source):
    """The body of a response, also of one that does not say how long it is.

    A body that breaks off is resumed if its length and version are known. Time and bytes are bounded:
    the time by `StorageOptions.total`, the bytes by the length, or by `unannounced_bytes` without one.
    """

    def __init__(self, url: str, options: StorageOptions) -> None:
        self._url, self._options = url, options
        self._budget = Budget(url, options)
        self._connection, self._response = self._ask({})
        if self._response.status == 206:
            self.close()
            raise TransferError("the server gave a part where all was asked for.", url=url)
        self.version = self._response.getheader("ETag")
        self.length = self._response.length
        self._received = 0
        self._resumes = options.retries

    def _ask(self, headers: dict[str, str]) -> Exchange:
        return _patiently(
            self._options,
            lambda: request("GET", self._url, self._options, self._budget, headers=headers),
        )

    def read(self, size: int, /) -> bytes:
        while True:
            try:
                data = self._read(size)
                if not data and self.length is not None and self._received < self.length:
                    raise ShortRead(
                        f"{self._received} bytes arrived, the server announced {self.length}.",
                        url=self._url,
                        offset=self._received,
                    )
                break
            except (ShortRead, Stalled) as error:
                self._resume(error)
        self._received += len(data)
        if self.length is None and self._received > self._options.unannounced_bytes:
            raise TransferError(
                f"more than {self._options.unannounced_bytes} bytes came from a server that does not say how "
                "many there are.",
                url=self._url,
                offset=self._received,
                hint="raise StorageOptions.unannounced_bytes, if the file is that large.",
            )
        return data

    def _read(self, size: int) -> bytes:
        try:
            self._budget.wait()  # also where all bytes have come already, and only time goes by
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
        """Ask for the rest, if that can be told from the rest of another object; else raise."""
        condition = if_match(self.version)
        if self.length is None or condition is None or not self._resumes:
            raise error
        self._resumes -= 1
        self.close()
        rest = {"Range": f"bytes={self._received}-", "If-Match": condition}
        self._connection, self._response = self._ask(rest)
        check_version(self._response.getheader("ETag"), self.version, self._url)
        if _span(self._response) != (self._received, self.length, self.length):
            raise error

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def stat(url: str, options: StorageOptions) -> ObjectInfo:
    """Return size and ETag."""
    try:
        response = _answer("HEAD", url, options, {})
        size = response.getheader("Content-Length")
    except TarmacError as refusal:
        if type(refusal) not in (AccessDenied, TransferError):
            raise
        # A URL signed for GET answers to nothing else, so ask for the first byte instead.
        try:
            response = _answer("GET", url, options, {"Range": "bytes=0-0"})
        except TarmacError:
            raise refusal from None
        span = _span(response)
        size = response.getheader("Content-Length") if span is None else str(span[2])
    if size is None or not re.fullmatch(r"[0-9]{1,18}", size):
        raise TransferError("the server does not say how long the file is.", url=url)
    return ObjectInfo(int(size), response.getheader("ETag"))


def read_range(url: str, start: int, stop: int, options: StorageOptions, version: str | None = None) -> bytes:
    """Return the bytes from `start` up to `stop`; fewer only at the end of the object."""
    condition = if_match(version)
    asked = {"Range": f"bytes={start}-{stop - 1}", **({} if condition is None else {"If-Match": condition})}
    data = bytearray()

    def attempt() -> None:
        data.clear()
        budget = Budget(url, options)
        connection, response = request("GET", url, options, budget, headers=asked)
        with contextlib.closing(connection), contextlib.closing(response), network_errors(url):
            span = _span(response)
            if span is None or span[0] != start or span[1] > stop or (span[1] < stop and span[1] != span[2]):
                hint = "a cache, --cache DIR, which reads shards from front to back."
                what = "the server does not give the ranges of bytes asked for."
                raise TransferError(what, url=url, hint=hint)
            check_version(response.getheader("ETag"), version, url)
            while len(data) < span[1] - start and (piece := response.read1(span[1] - start - len(data))):
                data.extend(piece)
            if len(data) < span[1] - start:
                raise ConnectFailed(f"{len(data)} bytes arrived of {span[1] - start}.", url=url)

    _patiently(options, attempt)
    return bytes(data)


def put(url: str, file: IO[bytes], size: int, options: StorageOptions) -> None:
    """Upload a file with PUT. A server that redirects is asked first, so the body travels once."""

    def attempt() -> None:
        budget = Budget(url, options)
        connection, response = request("PUT", url, options, budget, file=file, size=size)
        with contextlib.closing(connection), network_errors(url):
            response.read()

    _patiently(options, attempt)


def _answer(
    method: str, url: str, options: StorageOptions, headers: dict[str, str]
) -> http.client.HTTPResponse:
    """Ask for what is in the head of an answer; its body is not read."""
    connection, response = _patiently(
        options, lambda: request(method, url, options, Budget(url, options), headers=headers)
    )
    response.close()
    connection.close()
    return response


def _span(response: http.client.HTTPResponse) -> tuple[int, int, int] | None:
    """Which bytes an answer holds: from, to, and of how many; None if it does not hold a part."""
    found = _CONTENT_RANGE.fullmatch(response.getheader("Content-Range", ""))
    if response.status != 206 or found is None or found[3] == "*":
        return None
    return int(found[1]), int(found[2]) + 1, int(found[3])


def _patiently(options: StorageOptions, attempt: Callable[[], T]) -> T:
    """Try again while the server cannot be reached or is busy, with pauses that grow and jitter."""
    deadline = time.monotonic() + options.retry_time
    pause = options.backoff
    for _ in range(options.retries):
        try:
            return attempt()
        except ConnectFailed:
            wait = random.uniform(0, pause)
            if time.monotonic() + wait > deadline:
                raise
            time.sleep(wait)
            pause = min(pause * 2, options.max_backoff)
    return attempt()
