"""A directory behind a web server on loopback, and base classes of such servers."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from harness.faultserver import Unsatisfiable, parse_range

__all__ = ["EndingServer", "Handler", "folder", "serving"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, headers: Mapping[str, str] | None = None, length: int = 0) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def save(self, output: Any) -> bool:
        """Copy the body of the request to `output`; return False if the client disconnected."""
        rest = int(self.headers.get("Content-Length", 0))
        while rest and (piece := self.rfile.read(min(rest, 1 << 20))):
            output.write(piece)
            rest -= len(piece)
        return not rest


class EndingServer(ThreadingHTTPServer):
    """A server that closes its connections when it stops, so that no thread remains."""

    daemon_threads = False

    def __init__(self, handler: Any) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that were killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


@contextmanager
def serving(handler: type[Handler]) -> Iterator[str]:
    with EndingServer(handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def folder(
    root: Path,
    prefix: str = "/",
    *,
    keep_alive: bool = True,
    log: list[tuple[str, str, str | None]] | None = None,
    fault: Callable[[str], int | None] | None = None,
) -> Iterator[str]:
    """Serve the files below `root` to GET, HEAD and PUT, with ranges and ETags; queries are ignored.

    Without `keep_alive`, each connection and its thread end with the request. Method, path and range of each
    request are added to `log`. If `fault(path)` returns a status, the server answers with it.
    """
    base = root.resolve()

    class Folder(Handler):
        protocol_version = "HTTP/1.1" if keep_alive else "HTTP/1.0"

        def path_of_object(self) -> Path:
            name = unquote(urlsplit(self.path).path).removeprefix(prefix)
            path = (base / name).resolve()
            return path if path.is_relative_to(base) else base

        def do_GET(self) -> None:
            path = self.path_of_object()
            if log is not None:
                log.append((self.command, self.path, self.headers.get("Range")))
            status = None if path.is_file() else 404
            if fault is not None:
                status = fault(self.path) or status
            if status is not None:
                self.reply(status)
                return
            with path.open("rb") as file:
                facts = os.fstat(file.fileno())
                size, headers = facts.st_size, {"ETag": f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'}
                try:
                    span = parse_range(self.headers.get("Range"), size)
                except Unsatisfiable:
                    self.reply(416, {"Content-Range": f"bytes */{size}"})
                    return
                start, stop = span or (0, size)
                if span:
                    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
                self.reply(206 if span else 200, headers, stop - start)
                if self.command == "GET":
                    self.connection.sendfile(file, start, stop - start)

        do_HEAD = do_GET

        def do_PUT(self) -> None:
            path = self.path_of_object()
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                whole = self.save(file)
            if whole:
                os.replace(file.name, path)
            else:
                os.unlink(file.name)
            self.reply(200 if whole else 400)

    with serving(Folder) as url:
        yield url
