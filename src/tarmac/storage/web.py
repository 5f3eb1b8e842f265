"""What obstore does not do over HTTP: bodies of unknown length, and uploads that follow a redirect.

Plain standard library: no resume, but nothing silent either. A chunked body ends with its last chunk
or with an error; a body that ends when the connection closes is judged by the tar end mark.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import IO, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from tarmac.errors import ConnectFailed, ShortRead, Stalled
from tarmac.limits import MIB
from tarmac.storage.failures import refused
from tarmac.storage.stores import login_of
from tarmac.storage.types import Source, StorageOptions

__all__ = ["WebSource", "put"]

REDIRECTS = frozenset((301, 302, 303, 307, 308))
MAX_REDIRECTS = 10
GO_ON_SECONDS = 1.0
"""How long a server may think about `Expect: 100-continue`; many do not know it and say nothing."""
_KEPT = "/:;=&?~+!$,'@()*[]%-._"  # what a URL may hold as it is; the rest gets escaped

Exchange = tuple[http.client.HTTPConnection, http.client.HTTPResponse]
T = TypeVar("T")


class WebSource(Source):
    """The body of a response that does not say how long it is."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self._url = url
        self._connection, self._response = _patiently(options, lambda: _request("GET", url, options))
        self.version = self._response.getheader("ETag")
        self.length = self._response.length  # asked a second time, a server may name it after all
        self._received = 0

    def read(self, size: int, /) -> bytes:
        data = self._read(size)
        self._received += len(data)
        if not data and self.length is not None and self._received < self.length:
            raise ShortRead(
                f"{self._received} bytes arrived, the server announced {self.length}.",
                url=self._url,
                offset=self._received,
            )
        return data

    def _read(self, size: int) -> bytes:
        try:
            return self._response.read1(size)
        except TimeoutError:
            raise Stalled("the server stopped sending.", url=self._url) from None
        except http.client.HTTPException:
            raise ShortRead("the connection closed in the middle of a chunk.", url=self._url) from None
        except OSError as error:
            raise ShortRead(f"the connection broke: {error.strerror}.", url=self._url) from None

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def put(url: str, file: IO[bytes], size: int, options: StorageOptions) -> None:
    """Upload a file with PUT. A server that redirects is asked first, so the body travels once."""

    def attempt() -> None:
        connection, response = _request("PUT", url, options, file=file, size=size)
        with contextlib.closing(connection), _network(url):
            response.read()

    _patiently(options, attempt)


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


@contextlib.contextmanager
def _network(url: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise Stalled("the server does not answer.", url=url) from None
    except OSError as error:
        raise ConnectFailed(
            f"the server cannot be reached: {error.strerror or 'no answer'}.", url=url
        ) from None
    except http.client.HTTPException as error:  # its text may quote the URL
        raise ConnectFailed(
            f"the server's answer makes no sense ({type(error).__name__}).", url=url
        ) from None


def _request(
    method: str, url: str, options: StorageOptions, *, file: IO[bytes] | None = None, size: int = 0
) -> Exchange:
    """Send a request, follow redirects, and return what answered with success."""
    target, login = login_of(url)
    origin = urlsplit(target)[:2]
    for _hop in range(MAX_REDIRECTS):
        parts = urlsplit(target)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConnectFailed("the server redirects to what is not a web address.", url=url)
        # Credentials belong to the server they were given for, not to where it sends us.
        headers = {**options.headers, **login} if parts[:2] == origin else {}
        path = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_KEPT)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc.rpartition("@")[2], timeout=options.connect)
        try:
            with _network(url):
                connection.connect()
                connection.sock.settimeout(options.idle)
                if file is None:
                    connection.request(method, path, headers=headers)
                    response = connection.getresponse()
                else:
                    response = _send(connection, method, path, headers, file, size)
        except BaseException:
            connection.close()
            raise
        if response.status < 300:
            return connection, response
        connection.close()
        if response.status not in REDIRECTS:
            raise refused(response.status, url)
        target = urljoin(target, response.getheader("Location", ""))
    raise ConnectFailed(f"more than {MAX_REDIRECTS} redirects.", url=url)


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    headers: dict[str, str],
    file: IO[bytes],
    size: int,
) -> http.client.HTTPResponse:
    """Send a request with a body, but wait for the server's word on the headers first."""
    connection.putrequest(method, path)
    for name, value in {**headers, "Content-Length": str(size), "Expect": "100-continue"}.items():
        connection.putheader(name, value)
    connection.endheaders()
    if _told_to_go_on(connection.sock):
        file.seek(0)
        # A server that refuses may stop listening before it has all; its answer says why.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while chunk := file.read(MIB):
                connection.send(chunk)
    return connection.getresponse()


def _told_to_go_on(sock: socket.socket) -> bool:
    """Peek at the reply to `Expect: 100-continue`; http.client itself skips a 100 later on.

    Silence means yes. So does TLS, where nothing can be peeked at: there the body may travel twice.
    """
    deadline = time.monotonic() + GO_ON_SECONDS
    while not isinstance(sock, ssl.SSLSocket) and (left := deadline - time.monotonic()) > 0:
        if not select.select([sock], [], [], left)[0]:
            return True
        status = sock.recv(12, socket.MSG_PEEK)
        if len(status) == 12 or not status:
            return status.endswith(b" 100")
        time.sleep(0.001)  # the rest of the line is on its way
    return True
