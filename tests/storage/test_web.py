"""HTTP without obstore: uploads with redirects, and reading in secure mode."""

from __future__ import annotations

import contextlib
import gc
import random
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness import reserved_ports
from harness.faultserver import Action, FaultServer
from harness.servers import redirector
from harness.waiting import TIMEOUT
from tarmac.errors import (
    AccessDenied,
    CommitFailed,
    ConnectFailed,
    NotFound,
    ShortRead,
    Stalled,
    TransferError,
    UnclosedWriter,
)
from tarmac.samples.writer import TarWriter
from tarmac.storage import WriteOptions, open_read, open_write, read_range, stat
from tarmac.tar import read_members

LARGE = random.Random(6).randbytes(5_000_000)


@contextlib.contextmanager
def upload_server(behave=lambda handler: None, *, greets: bool = True):
    """Store uploads; `behave(handler)` may answer a request instead, by returning True."""
    kept: dict[str, bytes] = {}
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def handle_expect_100(self):
            return super().handle_expect_100() if greets and not hasattr(behave, "early") else True

        def answer(self, status: int, **headers: str):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_PUT(self):
            seen.append(dict(self.headers))
            if behave(self):
                self.close_connection = True
                return
            kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(201)

        def do_HEAD(self):
            self.answer(404 if self.path not in kept else 200)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", kept, seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def put(url, data, options, write=WriteOptions()):
    sink = open_write(url, options, write)
    sink.write(data)
    sink.commit()


@pytest.mark.parametrize("greets", [True, False])
def test_put(hasty, greets):
    with upload_server(greets=greets) as (url, kept, _):
        put(f"{url}/a%20b.tar?x=1", LARGE, hasty)
        put(f"{url}/empty", b"", hasty)
        assert kept == {"/a%20b.tar?x=1": LARGE, "/empty": b""}
        with pytest.raises(CommitFailed, match="exists"):
            put(f"{url}/empty", b"x", hasty, WriteOptions(overwrite=False))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_put_follows_redirects_without_credentials(hasty, status):
    options = replace(hasty, headers={"Authorization": "Bearer mine"})
    with upload_server() as (url, kept, seen), redirector(lambda path: url + path, status=status) as front:
        put(f"{front}/x.tar", LARGE, options)
        assert kept == {"/x.tar": LARGE}
        assert "Authorization" not in seen[-1]
        put(f"{url}/y.tar", b"y", options)
        assert seen[-1]["Authorization"] == "Bearer mine"


def test_put_retries(hasty):
    answers = [503, 500, 429]

    def busy(handler):
        if answers:
            handler.answer(answers.pop())
            return True
        return False

    with upload_server(busy) as (url, kept, _):
        put(f"{url}/x.tar", LARGE, hasty)
        assert kept == {"/x.tar": LARGE}
        answers.extend([503] * 20)
        with pytest.raises(ConnectFailed, match="503"):
            put(f"{url}/y.tar", LARGE, hasty)
        assert "/y.tar" not in kept


def test_put_does_not_retry_client_errors(hasty):
    def refuse(handler):
        handler.answer(403)
        return True

    with upload_server(refuse) as (url, _, seen):
        with pytest.raises(AccessDenied, match="403"):
            put(f"{url}/x.tar", LARGE, hasty)
        assert len(seen) == 1


def test_put_to_a_stalled_server(hasty):
    hang = threading.Event()

    def wait(_):
        hang.wait(TIMEOUT)
        return True

    with upload_server(wait) as (url, _, _seen):
        with pytest.raises(Stalled):
            put(f"{url}/x.tar", b"x", replace(hasty, idle_timeout=0.3), WriteOptions(overwrite=True))
        hang.set()


def test_put_with_invalid_redirects(hasty):
    options = replace(hasty, retries=1)
    for target in ("/again", "file:///tmp/x", "ftp://x/y", "http://"):
        with redirector(lambda _, target=target: target) as url:
            with pytest.raises(ConnectFailed, match="redirect"):
                put(f"{url}/x", b"x", options, WriteOptions(overwrite=True))
    with reserved_ports(1) as [port], pytest.raises(ConnectFailed, match="reached"):
        put(f"http://127.0.0.1:{port}/x", b"x", options)


def test_bodies_without_length_follow_redirects(hasty):
    from harness.faultserver import Action, FaultServer

    with FaultServer(LARGE) as server, redirector(lambda _: server.url) as front:
        server.script([], then=Action(framing="chunked"))
        options = replace(hasty, headers={"Authorization": "Bearer mine"})
        with open_read(f"{front}/x.tar", options) as source:
            assert b"".join(iter(lambda: source.read(99_999), b"")) == LARGE
        assert not any("authorization" in request.headers for request in server.requests)
        server.script(
            [], then=Action(framing="chunked", status=302, headers={"Location": "file:///etc/passwd"})
        )
        with pytest.raises(TransferError):
            open_read(f"{front}/x.tar", options)


def test_an_invalid_response(hasty):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            for _ in range(2):
                client, _ = listener.accept()
                with client:
                    client.recv(10_000)
                    client.sendall(b"nonsense\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ConnectFailed, match="BadStatusLine"):
            put(
                f"http://127.0.0.1:{port}/x?sig=s3cret",
                b"x",
                replace(hasty, retries=1),
                WriteOptions(overwrite=True),
            )
        thread.join()


def test_a_status_line_in_several_packets(hasty):
    import socket
    import time

    received = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.recv(10_000)
                for piece in (b"HTT", b"P/1.1 1", b"00 Continue\r\n\r\n"):
                    client.sendall(piece)
                    time.sleep(0.02)
                received.append(client.recv(100))
                client.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        put(f"http://127.0.0.1:{port}/x", b"the body", hasty, WriteOptions(overwrite=True))
        thread.join()
    assert received == [b"the body"]


# ---- reading in secure mode


@pytest.fixture
def secure(monkeypatch):
    monkeypatch.setenv("TARMAC_SECURE", "1")


BODY = random.Random(8).randbytes(50_000)


def test_ranges(secure, hasty):
    with FaultServer(BODY) as server:
        for start, stop in ((0, 1), (0, 50_000), (49_999, 50_000), (7, 4096)):
            for version in (None, '"v1"'):
                assert read_range(server.url, start, stop, hasty, version) == BODY[start:stop]
        with pytest.raises(ShortRead):
            read_range(server.url, 49_990, 50_010, hasty)
        with pytest.raises(TransferError, match="416"):
            read_range(server.url, 60_000, 60_010, hasty)


@pytest.mark.parametrize(
    "action",
    [Action(whole=True), Action(shift=1), Action(widen=5), Action(headers={"Content-Range": "bytes 10-19/*"})]
    + [
        Action(headers={"Content-Range": text})
        for text in ("", "bytes 10-9/5", "items 10-19/50", "bytes 10-29/50000")
    ],
)
def test_responses_with_another_range(secure, hasty, action):
    with FaultServer(BODY) as server:
        server.script([], then=action)
        with pytest.raises(TransferError):
            read_range(server.url, 10, 20, hasty)


def test_a_broken_range_is_requested_again(secure, hasty):
    with FaultServer(BODY) as server:
        server.script([Action(cut=5), Action(status=503), Action(cut=9, reset=True)])
        assert read_range(server.url, 100, 900, hasty, '"v1"') == BODY[100:900]
        server.script([], then=Action(cut=5))
        with pytest.raises(ConnectFailed):
            read_range(server.url, 100, 900, hasty)


def test_size_and_version(secure, hasty):
    with FaultServer(BODY) as server:
        info = stat(server.url, hasty)
        assert (info.size, info.version) == (50_000, '"v1"')
        server.script([Action(status=403)])  # a URL that is signed for GET only
        assert stat(server.url, hasty) == info
        server.script([Action(status=405), Action(whole=True)])  # a server without ranges
        assert stat(server.url, hasty) == info
        server.script([], then=Action(status=403))
        with pytest.raises(AccessDenied):
            stat(server.url, hasty)
        server.script([], then=Action(status=404))
        with pytest.raises(NotFound):
            stat(server.url, hasty)
        for length in ("x", "-1", "9" * 40):
            server.script([], then=Action(headers={"Content-Length": length}))
            with pytest.raises(TransferError):
                stat(server.url, hasty)


def test_a_partial_response_to_a_full_request(secure, hasty):
    with FaultServer(BODY) as server:
        server.script([], then=Action(status=206))
        with pytest.raises(TransferError, match="object"):
            open_read(server.url, hasty)


def test_an_unclosed_writer_uploads_its_data():
    with upload_server() as (url, kept, _), pytest.warns(UnclosedWriter, match=r"x\.tar: "):
        TarWriter(f"{url}/x.tar").write({"__key__": "a", "txt": "x"})
        gc.collect()
    (content,) = kept.values()
    assert [name for name, *_ in read_members(content)] == [b"a.txt"]
