"""A proxy in front of a web server that delays every request, as a bucket in another building does.

`delaying(url)` runs it in a process of its own, so that its work does not share the interpreter of what is measured.
Bodies pass through the kernel alone (`os.splice`). It listens on loopback and ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

DELAY = 0.020
"""Seconds from a request to its answer."""
MAX_CONNECTIONS = 256
MAX_HEAD = 1 << 16
_PIECE = 1 << 20


@contextlib.contextmanager
def delaying(url: str, seconds: float = DELAY) -> Iterator[str]:
    """Run a proxy for the web server at `url`; yield its own URL."""
    command = [sys.executable, "-m", "bench.proxy", url, str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()  # which ends it, as would our own end


def _serve(target: tuple[str, int], seconds: float) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS)
    free = threading.BoundedSemaphore(MAX_CONNECTIONS)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        client, _ = listener.accept()
        free.acquire()
        threading.Thread(target=_connection, args=(client, target, seconds, free), daemon=True).start()


def _connection(
    client: socket.socket, target: tuple[str, int], seconds: float, free: threading.Semaphore
) -> None:
    """Pass on the requests of one connection, each after the delay, and the answers at once."""
    try:
        with client, contextlib.suppress(OSError), socket.create_connection(target) as server:
            answers = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
            answers.start()
            while head := _request(client):
                time.sleep(seconds)
                server.sendall(head)
            server.shutdown(socket.SHUT_WR)
            answers.join()
    finally:
        free.release()


def _request(client: socket.socket) -> bytes:
    """Receive one request, which has no body; nothing at the end of the connection."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = client.recv(MAX_HEAD)
        if not piece or len(head) > MAX_HEAD:
            return b""
        head += piece
    return head


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Move bytes from one socket to the other until the first one ends."""
    output, into = os.pipe()
    try:
        with contextlib.suppress(OSError):
            while count := os.splice(source.fileno(), into, _PIECE):
                while count:
                    count -= os.splice(output, target.fileno(), count)
    finally:
        os.close(output)
        os.close(into)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for requests


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    parts = urlsplit(sys.argv[1])
    _serve((parts.hostname or "127.0.0.1", parts.port or 80), float(sys.argv[2]))
