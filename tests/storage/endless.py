"""A server that never stops sending."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

MOST = 1 << 28  # bytes after which the test has failed


@dataclass
class Endless:
    """The URL of the server, and the number of bytes that it has sent."""

    url: str = ""
    sent: int = 0
    gave_up: bool = False


@contextlib.contextmanager
def endless(first: bytes, again: bytes) -> Iterator[Endless]:
    """Answer each request with `first`, then repeat `again` until the client disconnects."""
    server = Endless()
    listener = socket.create_server(("127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}/object.tar"
    piece = again * max(1, 4096 // len(again))

    def talk(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            connection.sendall(first)
            while server.sent < MOST:
                connection.sendall(piece)
                server.sent += len(piece)
            server.gave_up = True

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
