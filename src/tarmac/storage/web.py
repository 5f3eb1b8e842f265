"""What obstore does not do over HTTP: bodies of unknown length, and uploads that follow a redirect.

Plain standard library: no resume, but nothing silent either. A chunked body ends with its last chunk
or with an error; a body that ends when the connection closes is judged by the tar end mark.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from tarmac.errors import (
    AccessDenied,
    ConnectFailed,
    NotFound,
    ShortRead,
    Stalled,
    TarmacError,
    TransferError,
)
from tarmac.limits import MIB
from tarmac.storage.types import Source, StorageOptions

__all__ = ["WebSource", "lacks_length", "put"]

REDIRECTS = frozenset((301, 302, 303, 307, 308))
MAX_REDIRECTS = 10


def lacks_length(error: Exception) -> bool:
    """Whether obstore refused a response because it does not announce its length."""
    return "Content-Length Header missing" in str(error)


class WebSource(Source):
    """The body of a response that does not say how long it is."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self._url = url
        self._connection, self._response = _request("GET", url, options)

    def read(self, size: int, /) -> bytes:
        try:
            return self._response.read1(size)
        except TimeoutError:
            raise Stalled("the server stopped sending.", url=self._url) from None
        except http.client.HTTPException:
            raise ShortRead("the connection closed in the middle of a chunk.", url=self._url) from None
        except OSError as error:
            raise ShortRead(f"the connection broke: {error}.", url=self._url) from None

    def close(self) -> None:
        self._response.close()
        self._connection.close()


def put(url: str, file: IO[bytes], size: int, options: StorageOptions) -> None:
    """Upload a file with PUT. A server that redirects is asked first, so the body travels once."""
    connection, response = _request("PUT", url, options, file=file, size=size)
    with contextlib.closing(connection):
        response.read()


def _request(
    method: str, url: str, options: StorageOptions, *, file: IO[bytes] | None = None, size: int = 0
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    origin = urlsplit(url).netloc
    target = url
    for _hop in range(MAX_REDIRECTS):
        parts = urlsplit(target)
        if parts.scheme not in ("http", "https"):
            raise ConnectFailed(f"the server redirects to {parts.scheme}:, which is not followed.", url=url)
        connection = _connect(parts.scheme, parts.netloc.rpartition("@")[2], options)
        # Credentials belong to the server they were given for, not to where it sends us.
        headers = dict(options.headers) if parts.netloc == origin else {}
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            if file is None:
                connection.request(method, path, headers=headers)
                response = connection.getresponse()
            else:
                response = _send(connection, method, path, headers, file, size)
        except TimeoutError:
            connection.close()
            raise Stalled("the server does not answer.", url=url) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ConnectFailed(f"the server cannot be reached: {error}.", url=url) from None
        if response.status in REDIRECTS:
            target = urljoin(target, response.getheader("Location", ""))
            connection.close()
            continue
        if response.status >= 300:
            connection.close()
            raise _refused(response.status, response.reason, url)
        return connection, response
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
    if not _told_to_go_on(connection):
        return connection.getresponse()
    file.seek(0)
    while chunk := file.read(MIB):
        connection.send(chunk)
    return connection.getresponse()


def _told_to_go_on(connection: http.client.HTTPConnection) -> bool:
    """Peek at the reply to `Expect: 100-continue`; servers that ignore it stay silent for a moment."""
    import select
    import socket

    sock: Any = connection.sock
    if not select.select([sock], [], [], 1.0)[0]:
        return True
    head = sock.recv(64, socket.MSG_PEEK) if not isinstance(sock, ssl.SSLSocket) else b""
    if b" 100" in head[:13]:
        # http.client skips the interim response itself when it reads the final one.
        return True
    return not head


def _connect(scheme: str, netloc: str, options: StorageOptions) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    return kind(netloc, timeout=options.idle)


def _refused(status: int, reason: str, url: str) -> TarmacError:
    what = f"the server answered {status} {reason}."
    if status in (401, 403):
        return AccessDenied(what, url=url)
    if status == 404:
        return NotFound(what, url=url)
    return TransferError(what, url=url)
