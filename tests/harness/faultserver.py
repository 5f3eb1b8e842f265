"""A scripted HTTP/1.1 server that misbehaves on purpose.

Readers must return the correct bytes or raise, whatever the network does.
It speaks raw sockets because a proper HTTP server refuses to send a wrong reply.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import random
import select
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Literal

from harness.waiting import TIMEOUT, until

_PIECE = 1 << 16  # bytes per send call
_CHUNK = 1 << 14  # bytes in a chunk of chunked transfer
_MAX_HEAD = 1 << 16  # longest accepted request head
_SIOCOUTQNSD = 0x894B  # Linux: bytes of a socket not yet put on the wire


@dataclass(frozen=True)
class Action:
    """The faults of one response. Fields combine; without any, the request is served correctly.

    Byte positions count the body bytes of the reply, not of the object.
    """

    cut: int | None = None  # close after this number of body bytes
    reset: bool = False  # close with RST rather than FIN, after `cut` bytes or after all
    framing: Literal["length", "close", "chunked"] = "length"  # how the end of the body is marked
    stall: float = 0.0  # pause for this number of seconds ...
    stall_at: int = 0  # ... after this number of body bytes, then continue
    rate: int | None = None  # send this number of body bytes per second
    head_seconds: float = 0.0  # spread the head of the reply over this number of seconds
    silent: bool = False  # close without a reply (after `stall` seconds)
    status: int | None = None  # reply with this code and a short text
    headers: Mapping[str, str] = field(default_factory=dict)  # added to the reply, or replaced in it
    body: bytes | None = field(default=None, repr=False)  # answer 200 with these bytes instead
    whole: bool = False  # answer 200 with the whole body, ignoring Range
    widen: int = 0  # extend the requested range by this number of bytes on both sides
    shift: int = 0  # shift the Content-Range by this number, but not the bytes
    change: tuple[bytes, str | None] | None = field(default=None, repr=False)  # new body and ETag from now on


SERVE = Action()
NO_REPLY = Action(silent=True)
IGNORE_RANGE = Action(whole=True)
GZIP_LABEL = Action(headers={"Content-Encoding": "gzip"})
REDIRECT_TO_SELF = Action(status=302, headers={"Location": "/object.tar"})  # a loop if repeated
REDIRECT_TO_FILE = Action(status=302, headers={"Location": "file:///etc/passwd"})


@dataclass
class Request:
    """A request, the action taken, and the number of body bytes sent."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    range: str | None
    if_match: str | None
    action: Action
    sent: int = 0


@dataclass
class _Reply:
    """The head and body of a response."""

    status: int
    headers: dict[str, str]
    body: bytes | memoryview

    def head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Unsatisfiable(ValueError):
    """The requested range is outside of the object."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Parse a single-range header into (start, stop); return None if it is missing or invalid."""
    if not header or not header.startswith("bytes="):
        return None
    first, dash, last = header[len("bytes=") :].strip().partition("-")
    if not dash or not (first + last).isdigit():
        return None
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        raise Unsatisfiable(header)
    return start, stop


class FaultServer:
    """Serve one body under every path; `script` sets the faults of the next requests."""

    def __init__(
        self,
        body: bytes,
        *,
        etag: str | None = '"v1"',
        if_match: bool = True,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        """With `if_match` false, ignore If-Match; `pause` replaces time.sleep."""
        self._body, self._etag = body, etag
        self._honours_if_match = if_match
        self._script: deque[Action] = deque()
        self._then = SERVE
        self._log: list[Request] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pause = self._closing.wait if pause is None else pause
        self._connections: dict[socket.socket, threading.Thread] = {}

    def __enter__(self) -> FaultServer:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._address = self._listener.getsockname()
        self._accepting = threading.Thread(target=self._accept, name="faultserver", daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        socket.create_connection(self._address, timeout=TIMEOUT).close()  # wakes accept()
        self._accepting.join(TIMEOUT)
        self._listener.close()
        with self._lock:
            open_now = dict(self._connections)
        for connection in open_now:
            _shut(connection, socket.SHUT_RDWR)
        for thread in open_now.values():
            thread.join(TIMEOUT)

    @property
    def url(self) -> str:
        """The URL of the object."""
        return f"http://127.0.0.1:{self._address[1]}/object.tar"

    @property
    def requests(self) -> list[Request]:
        """A copy of the log, in the order of the requests."""
        with self._lock:
            return [dataclasses.replace(entry) for entry in self._log]

    def clear(self) -> None:
        """Clear the log."""
        with self._lock:
            self._log.clear()

    def script(self, actions: Iterable[Action], then: Action = SERVE) -> None:
        """Set the faults of the next requests in order, and of all requests after them."""
        with self._lock:
            self._script, self._then = deque(actions), then

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self._closing.is_set():
                connection.close()
                return
            thread = threading.Thread(target=self._talk, args=(connection,), daemon=True)
            with self._lock:
                self._connections[connection] = thread
            thread.start()

    def _talk(self, connection: socket.socket) -> None:
        """Answer the requests of one connection until either side closes it."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(TIMEOUT)
        buffer = b""
        with connection, contextlib.suppress(OSError):  # the client may disconnect at any time
            while not self._closing.is_set():
                head, buffer = _read_head(connection, buffer)
                if not head or not self._answer(connection, self._admit(head)):
                    break
            _shut(connection, socket.SHUT_WR)
        with self._lock:
            del self._connections[connection]

    def _admit(self, head: bytes) -> Request:
        """Log a request and take the next action of the script."""
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        with self._lock:
            action = self._script.popleft() if self._script else self._then
            if action.change:
                self._body, self._etag = action.change
            entry = Request(method, path, headers, headers.get("range"), headers.get("if-match"), action)
            self._log.append(entry)
        return entry

    def _reply(self, request: Request) -> _Reply:
        """Return the correct response, changed by the faults of the action that affect its head."""
        with self._lock:
            body, etag = self._body, self._etag
        action, size = request.action, len(body)
        if action.status is not None:
            return _plain(action.status, action.headers)
        if request.method not in ("GET", "HEAD"):
            return _plain(405, {"Connection": "close"})
        if action.body is not None:
            return _Reply(200, dict(action.headers), action.body)
        if self._honours_if_match and request.if_match not in (None, "*", etag):
            return _plain(412)
        stale = request.headers.get("if-range", etag) != etag
        try:
            span = None if stale or action.whole else parse_range(request.range, size)
        except Unsatisfiable:
            return _plain(416, {"Content-Range": f"bytes */{size}"})
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if etag is not None:
            headers["ETag"] = etag
        start, stop = span or (0, size)
        if span:
            start, stop = max(0, start - action.widen), min(size, stop + action.widen)
            headers["Content-Range"] = f"bytes {start + action.shift}-{stop + action.shift - 1}/{size}"
        return _Reply(206 if span else 200, headers | dict(action.headers), memoryview(body)[start:stop])

    def _answer(self, connection: socket.socket, request: Request) -> bool:
        """Send the reply with its faults; return whether to keep the connection."""
        action = request.action
        if action.silent:
            self._pause(action.stall)
            return False
        reply = self._reply(request)
        if action.framing == "length":
            reply.headers.setdefault("Content-Length", str(len(reply.body)))
        elif action.framing == "chunked":
            reply.headers["Transfer-Encoding"] = "chunked"
        else:
            reply.headers["Connection"] = "close"
        self._send_head(connection, reply.head(), action.head_seconds)
        if request.method != "HEAD":
            self._send_body(connection, request, reply.body)
        if action.reset:
            _reset(connection)
        ends = request.headers.get("connection") == "close" or "Connection" in reply.headers
        return not ends and action.cut is None and not action.reset

    def _send_head(self, connection: socket.socket, head: bytes, seconds: float) -> None:
        if not seconds:
            connection.sendall(head)
            return
        for at in range(len(head)):
            connection.sendall(head[at : at + 1])
            self._pause(seconds / len(head))

    def _send_body(self, connection: socket.socket, request: Request, body: bytes | memoryview) -> None:
        """Send the body up to the cut, with the framing of the action."""
        cut = request.action.cut
        end = len(body) if cut is None else min(cut, len(body))
        if request.action.framing != "chunked":
            self._send_part(connection, request, body[:end])
            return
        for start in range(0, end, _CHUNK):
            full = min(_CHUNK, len(body) - start)
            connection.sendall(b"%x\r\n" % full)
            self._send_part(connection, request, body[start : min(start + full, end)])
            if start + full <= end:
                connection.sendall(b"\r\n")
        if cut is None:
            connection.sendall(b"0\r\n\r\n")

    def _send_part(self, connection: socket.socket, request: Request, data: bytes | memoryview) -> None:
        """Send consecutive body bytes, with the stall if it falls among them."""
        action = request.action
        before = action.stall_at - request.sent
        if action.stall and 0 <= before < len(data):
            self._push(connection, request, data[:before])
            self._pause(action.stall)
            data = data[before:]
        self._push(connection, request, data)

    def _push(self, connection: socket.socket, request: Request, data: bytes | memoryview) -> None:
        """Send body bytes and count them under one lock, so that a client never receives more than is logged."""
        rate = request.action.rate
        piece = _PIECE if rate is None else max(1, rate // 50)
        rest = memoryview(data)
        while rest and not self._closing.is_set():
            _wait_writable(connection)  # outside of the lock, because send() would wait for a slow client
            with self._lock:
                count = connection.send(rest[:piece], socket.MSG_DONTWAIT)
                request.sent += count
            rest = rest[count:]
            if rate:
                self._pause(count / rate)


def _plain(code: int, headers: Mapping[str, str] | None = None) -> _Reply:
    return _Reply(code, {"Content-Type": "text/plain", **(headers or {})}, f"status {code}\n".encode())


def _read_head(connection: socket.socket, buffer: bytes) -> tuple[bytes, bytes]:
    """Read one request head; return it and the bytes after it. Empty if the client has disconnected."""
    while b"\r\n\r\n" not in buffer:
        more = connection.recv(_PIECE)
        if not more or len(buffer) > _MAX_HEAD:
            return b"", b""
        buffer += more
    head, _, rest = buffer.partition(b"\r\n\r\n")
    return head, rest


def _wait_writable(connection: socket.socket) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    if not poll.poll(TIMEOUT * 1000):
        raise TimeoutError("the client does not read")


def _shut(connection: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # the other side may have closed it
        connection.shutdown(how)


def _reset(connection: socket.socket) -> None:
    """Close with a reset, after all sent bytes have left the socket (a reset discards the rest)."""
    until(lambda: not _unsent(connection), pause=0.0005)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _unsent(connection: socket.socket) -> int:
    if sys.platform != "linux":
        return 0
    count: int = struct.unpack("i", fcntl.ioctl(connection, _SIOCOUTQNSD, b"\0\0\0\0"))[0]
    return count


def random_script(rng: random.Random, size: int, count: int) -> list[Action]:
    """Return 1 to `count` random faults for a body of `size` bytes: short bodies, resets, 5xx and no response.

    Stalls are omitted because they take time.
    """
    return [_random_fault(rng, size) for _ in range(rng.randint(1, count))]


def _random_fault(rng: random.Random, size: int) -> Action:
    kind = rng.choice(("cut", "reset", "status", "silence"))
    if kind == "status":
        return Action(status=rng.choice((500, 502, 503, 504)))
    if kind == "silence":
        return NO_REPLY
    return Action(cut=_random_position(rng, size), reset=kind == "reset")


def _random_position(rng: random.Random, size: int) -> int:
    """Return a random byte position, preferably at a block boundary or the last byte."""
    last = max(0, size - 1)
    edges = (0, 1, 511, 512, 513, last, 4096 * rng.randint(0, last // 4096), rng.randint(0, last))
    return min(last, rng.choice(edges))
