"""One HTTP request and its response: redirects, credentials and timeouts.

Whatever a server does (slow headers, endless trailers or chunks, repeated 100 responses), each wait for
bytes is bounded by the idle timeout, and the whole request by the total timeout.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import IO, Any
from urllib.parse import quote, urljoin, urlsplit

from tarmac.environment import is_secure
from tarmac.errors import ConnectFailed, Stalled, TarmacError
from tarmac.limits import MIB
from tarmac.storage.addresses import Guard
from tarmac.storage.clients import credentials_of, login_of
from tarmac.storage.obstore_errors import status_error
from tarmac.storage.types import StorageOptions

REDIRECTS = frozenset((301, 302, 303, 307, 308))
MAX_REDIRECTS = 10
CONTINUE_TIMEOUT = 1.0
"""Seconds to wait for the response to `Expect: 100-continue`; servers that do not support it send none."""
_SAFE = "/:;=&?~+!$,'@()*[]%-._"  # other characters are escaped
_now = time.monotonic


class Budget:
    """The time that is left for a transfer: until its next byte, and in total."""

    def __init__(self, url: str, storage: StorageOptions) -> None:
        self._url, self._storage = url, storage
        self._end = _now() + storage.total_timeout

    def wait(self, timeout: float | None = None) -> float:
        """Return the timeout for the next bytes, or raise if the total timeout has passed."""
        left = self._end - _now()
        if left <= 0:
            raise Stalled(
                f"the transfer took longer than {self._storage.total_timeout:g} seconds.",
                url=self._url,
                hint="raise StorageOptions.total_timeout if the server is only slow.",
            )
        return min(left, self._storage.idle_timeout if timeout is None else timeout)


class _Metered(io.RawIOBase):
    """The bytes that a socket receives, within a budget."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, budget: Budget) -> None:
        self._raw, self._sock, self._budget = raw, sock, budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        self._sock.settimeout(self._budget.wait())
        try:
            return self._raw.readinto(buffer)
        except TimeoutError:
            self._budget.wait()  # raises if the total timeout has passed, and not only the idle timeout
            raise

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._raw.close()


class _Response(http.client.HTTPResponse):
    """A response whose headers and body are read within a budget."""

    def __init__(self, sock: socket.socket, *args: Any, budget: Budget, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Metered(self.fp.detach(), sock, budget))


@contextlib.contextmanager
def network_errors(url: str) -> Iterator[None]:
    """Translate network errors into tarmac's."""
    try:
        yield
    except TarmacError:
        raise
    except TimeoutError:
        raise Stalled("the server does not respond.", url=url) from None
    except OSError as error:
        what = f"the server cannot be reached: {error.strerror or 'no response'}."
        raise ConnectFailed(what, url=url) from None
    except ValueError:  # from urllib and the codec for host names; its text may quote the URL
        raise ConnectFailed("the server redirects to an invalid address.", url=url) from None
    except http.client.HTTPException as error:  # its text may quote the URL
        what = f"the response of the server is invalid ({type(error).__name__})."
        raise ConnectFailed(what, url=url) from None


def request(
    method: str,
    url: str,
    storage: StorageOptions,
    headers: Mapping[str, str],
    *,
    budget: Budget | None = None,
    body: IO[bytes] | None = None,
) -> http.client.HTTPResponse:
    """Send a request, follow redirects, and return the successful response, which owns the connection.

    In secure mode, redirects are followed only to public addresses or within the network of the URL.
    """
    budget = budget or Budget(url, storage)
    target, login = login_of(url)
    origin, location = urlsplit(target)[:2], ""
    guard = Guard(url) if is_secure() else None
    with network_errors(url):
        for _hop in range(MAX_REDIRECTS):
            target = urljoin(target, location)
            parts = urlsplit(target)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ConnectFailed("the server redirects to an address that is not http or https.", url=url)
            # Credentials are sent only to the server that they were given for, not to the target of a redirect.
            sent = {**headers, **({**storage.headers, **login} if parts[:2] == origin else {})}
            path = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_SAFE)
            connection = _connection(parts.scheme, parts.netloc.rpartition("@")[2], storage, budget, guard)
            try:
                connection.connect()
                connection.sock.settimeout(budget.wait())
                connection.request(method, path, headers=sent)
                if body is not None and _accepts_body(connection.sock):
                    _send(connection, body, budget)
                response = connection.getresponse()
            finally:
                if connection.sock is not None:
                    connection.sock.close()  # a response keeps its own reference
            if response.status < 300:
                return response
            response.close()
            if response.status not in REDIRECTS:
                raise status_error(response.status, url, credentials=credentials_of(url, storage))
            location = response.getheader("Location", "")
        raise ConnectFailed(f"more than {MAX_REDIRECTS} redirects.", url=url)


def _connection(
    scheme: str, host: str, storage: StorageOptions, budget: Budget, guard: Guard | None
) -> http.client.HTTPConnection:
    connection_class = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    connection = connection_class(host, timeout=budget.wait(storage.connect_timeout))
    connection.response_class = partial(_Response, budget=budget)  # type: ignore[assignment]
    if guard is not None:
        connection._create_connection = guard.connect  # type: ignore[attr-defined]
    return connection


def _send(connection: http.client.HTTPConnection, body: IO[bytes], budget: Budget) -> None:
    body.seek(0)
    # A server that rejects the body may stop reading; its response gives the reason.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while chunk := body.read(MIB):
            connection.sock.settimeout(budget.wait())
            connection.send(chunk)


def _accepts_body(sock: socket.socket) -> bool:
    """Peek at the response to `Expect: 100-continue`; http.client skips a 100 when it reads the response.

    No response means yes. TLS sockets cannot be peeked at, so there the body may be sent twice.
    """
    deadline = time.monotonic() + CONTINUE_TIMEOUT
    while not isinstance(sock, ssl.SSLSocket) and (left := deadline - time.monotonic()) > 0:
        if not select.select([sock], [], [], left)[0]:
            return True
        status = sock.recv(12, socket.MSG_PEEK)
        if len(status) == 12 or not status:
            return status.endswith(b" 100")
        time.sleep(0.001)  # wait for the rest of the line
    return True
