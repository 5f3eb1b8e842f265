"""One HTTP request and its answer, in plain standard library: redirects, credentials, budgets of time.

Whatever a server does (drip a header, send endless trailers or chunks, answer 100 for ever), each wait for
its bytes is bounded by the idle time, and all of them together by the total time.
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

from tarmac.errors import ConnectFailed, Stalled, TarmacError
from tarmac.limits import MIB
from tarmac.storage.addresses import Guard
from tarmac.storage.failures import refused
from tarmac.storage.security import is_secure
from tarmac.storage.stores import login_of
from tarmac.storage.types import StorageOptions

__all__ = ["Budget", "Exchange", "network_errors", "request"]

REDIRECTS = frozenset((301, 302, 303, 307, 308))
MAX_REDIRECTS = 10
GO_ON_SECONDS = 1.0
"""How long a server may think about `Expect: 100-continue`; many do not know it and say nothing."""
_KEPT = "/:;=&?~+!$,'@()*[]%-._"  # what a URL may hold as it is; the rest gets escaped
_now = time.monotonic

Exchange = tuple[http.client.HTTPConnection, http.client.HTTPResponse]


class Budget:
    """How long a transfer may take: between two of its bytes, and altogether."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self._url, self._options = url, options
        self._end = _now() + options.total

    def wait(self, most: float | None = None) -> float:
        """Return how long to wait for the next bytes; raise when the time is used up."""
        left = self._end - _now()
        if left <= 0:
            raise Stalled(
                f"the transfer took longer than {self._options.total:g} seconds.",
                url=self._url,
                hint="raise StorageOptions.total, if the server is only slow.",
            )
        return min(left, self._options.idle if most is None else most)


class _Metered(io.RawIOBase):
    """What a socket receives, within a budget."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, budget: Budget) -> None:
        self._raw, self._sock, self._budget = raw, sock, budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        self._sock.settimeout(self._budget.wait())
        try:
            return self._raw.readinto(buffer)
        except TimeoutError:
            self._budget.wait()  # says so if all the time is used up, and not only the idle time
            raise

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._raw.close()


class _Response(http.client.HTTPResponse):
    """An answer that is read within a budget, head and body."""

    def __init__(self, sock: socket.socket, *args: Any, budget: Budget, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp = io.BufferedReader(_Metered(self.fp.detach(), sock, budget))


@contextlib.contextmanager
def network_errors(url: str) -> Iterator[None]:
    """Turn errors of the network into tarmac's."""
    try:
        yield
    except TarmacError:
        raise
    except TimeoutError:
        raise Stalled("the server does not answer.", url=url) from None
    except OSError as error:
        what = f"the server cannot be reached: {error.strerror or 'no answer'}."
        raise ConnectFailed(what, url=url) from None
    except ValueError:  # what urllib and the codec of host names say; it may quote the URL
        raise ConnectFailed("the server redirects to an address that makes no sense.", url=url) from None
    except http.client.HTTPException as error:  # its text may quote the URL
        what = f"the server's answer makes no sense ({type(error).__name__})."
        raise ConnectFailed(what, url=url) from None


def request(
    method: str,
    url: str,
    options: StorageOptions,
    budget: Budget,
    *,
    headers: Mapping[str, str] | None = None,
    file: IO[bytes] | None = None,
    size: int = 0,
) -> Exchange:
    """Send a request, follow redirects, and return what answered with success.

    In secure mode a redirect is followed only to public addresses, or within the network of the URL itself.
    """
    target, login = login_of(url)
    origin, location = urlsplit(target)[:2], ""
    guard = Guard(url) if is_secure() else None
    for _hop in range(MAX_REDIRECTS):
        with network_errors(url):
            target = urljoin(target, location)
            parts = urlsplit(target)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConnectFailed("the server redirects to what is not a web address.", url=url)
        # Credentials belong to the server they were given for, not to where it sends us.
        sent = {**(headers or {}), **({**options.headers, **login} if parts[:2] == origin else {})}
        path = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_KEPT)
        with network_errors(url):
            connection = _connection(parts.scheme, parts.netloc.rpartition("@")[2], options, budget, guard)
            try:
                connection.connect()
                connection.sock.settimeout(budget.wait())
                if file is None:
                    connection.request(method, path, headers=sent)
                    response = connection.getresponse()
                else:
                    response = _send(connection, method, path, sent, file, size, budget)
            except BaseException:
                connection.close()
                raise
        if response.status < 300:
            return connection, response
        response.close()
        connection.close()
        if response.status not in REDIRECTS:
            raise refused(response.status, url)
        location = response.getheader("Location", "")
    raise ConnectFailed(f"more than {MAX_REDIRECTS} redirects.", url=url)


def _connection(
    scheme: str, host: str, options: StorageOptions, budget: Budget, guard: Guard | None
) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    made = kind(host, timeout=budget.wait(options.connect))
    made.response_class = partial(_Response, budget=budget)  # type: ignore[assignment]
    if guard is not None:
        made._create_connection = guard.connect  # type: ignore[attr-defined]
    return made


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    headers: Mapping[str, str],
    file: IO[bytes],
    size: int,
    budget: Budget,
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
                connection.sock.settimeout(budget.wait())
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
