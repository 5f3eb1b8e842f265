"""Every fault is what it says, seen by a client that hides nothing."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import threading
from datetime import timedelta
from urllib.parse import urlsplit

import obstore
import pytest
from obstore.store import HTTPStore

from harness.faultserver import (
    GZIP_LABEL,
    IGNORE_RANGE,
    NO_REPLY,
    REDIRECT_TO_FILE,
    REDIRECT_TO_SELF,
    SERVE,
    Action,
    FaultServer,
    Unsatisfiable,
    parse_range,
    random_script,
)
from harness.waiting import FOREVER, TIMEOUT, until

BODY = random.Random(1).randbytes(200_000)


@pytest.fixture
def server():
    with FaultServer(BODY) as running:
        yield running


@pytest.fixture
def client(server):
    parts = urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT)
    yield connection
    connection.close()


def ask(client: http.client.HTTPConnection, method: str = "GET", **headers: str):
    """One request on the open connection."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    client.request(method, "/object.tar", headers=named)
    return client.getresponse()


@contextlib.contextmanager
def connected(server: FaultServer, *headers: str):
    """A connection on which the object has been asked for."""
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT) as sock:
        sock.sendall("\r\n".join(["GET /object.tar HTTP/1.1", "Host: x", *headers, "", ""]).encode())
        yield sock


def raw(server: FaultServer, *headers: str) -> tuple[bytes, type[OSError] | None]:
    """All bytes of a reply up to the end of the connection, and the error that ended it."""
    received = b""
    with connected(server, *headers) as sock:
        try:
            while piece := sock.recv(1 << 16):
                received += piece
        except OSError as error:
            return received, type(error)
    return received, None


def body_of(reply: bytes) -> bytes:
    return reply.partition(b"\r\n\r\n")[2]


def test_serves_properly_and_keeps_the_connection(server, client):
    for _ in range(3):
        reply = ask(client)
        assert (reply.status, reply.read()) == (200, BODY)
        assert reply.headers["ETag"] == '"v1"'
        assert reply.headers["Content-Length"] == str(len(BODY))
    assert [entry.sent for entry in server.requests] == [len(BODY)] * 3


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=199990-", 199_990, 200_000),
        ("bytes=-7", 199_993, 200_000),
        ("bytes=199999-300000", 199_999, 200_000),
    ],
)
def test_serves_ranges(server, client, asked, start, stop):
    reply = ask(client, Range=asked)
    assert (reply.status, reply.read()) == (206, BODY[start:stop])
    assert reply.headers["Content-Range"] == f"bytes {start}-{stop - 1}/200000"
    assert [(entry.range, entry.sent) for entry in server.requests] == [(asked, stop - start)]


def test_refuses_a_range_outside_the_object(client):
    assert ask(client, Range="bytes=200000-").status == 416


def test_parse_range_reads_only_plain_single_ranges():
    unread = (None, "", "lines=1-2", "bytes=1-2,4-5", "bytes=-", "bytes=x-")
    assert [parse_range(text, 10) for text in unread] == [None] * 6
    with pytest.raises(Unsatisfiable):
        parse_range("bytes=5-4", 10)


def test_head_has_no_body(server, client):
    reply = ask(client, "HEAD")
    assert (reply.headers["Content-Length"], reply.read()) == ("200000", b"")
    assert ask(client).read() == BODY
    assert [(entry.method, entry.sent) for entry in server.requests] == [("HEAD", 0), ("GET", 200_000)]


def test_other_methods_are_refused(client):
    assert ask(client, "DELETE").status == 405


def test_if_match_and_if_range(server, client):
    assert ask(client, If_Match='"v1"').read() == BODY
    reply = ask(client, If_Match='"old"')
    assert (reply.status, bool(reply.read())) == (412, True)
    reply = ask(client, Range="bytes=1-2", If_Range='"old"')
    assert (reply.status, reply.read()) == (200, BODY)
    assert [entry.if_match for entry in server.requests] == ['"v1"', '"old"', None]


def test_a_server_may_have_no_etag_or_ignore_if_match():
    with FaultServer(BODY, etag=None, if_match=False) as server:
        reply, _ = raw(server, 'If-Match: "old"', "Range: bytes=0-3", "Connection: close")
        assert b"ETag" not in reply
        assert body_of(reply) == BODY[:4]


@pytest.mark.parametrize("at", [0, 1, 511, 100_000, 199_999])
@pytest.mark.parametrize("reset", [False, True])
def test_cut_and_reset(server, at, reset):
    server.script([Action(cut=at, reset=reset)])
    reply, error = raw(server)
    assert b"Content-Length: 200000" in reply
    assert body_of(reply) == BODY[:at]
    assert error is (ConnectionResetError if reset else None)
    assert server.requests[0].sent == at


def test_a_cut_counts_from_the_start_of_the_reply(server):
    server.script([Action(cut=10)])
    assert body_of(raw(server, "Range: bytes=500-")[0]) == BODY[500:510]


class Pauses:
    """Where a server pauses: for how long it means to, and no longer than the test wants."""

    def __init__(self):
        self.seconds, self.over = [], threading.Event()

    def __call__(self, seconds):
        self.seconds.append(seconds)
        assert self.over.wait(TIMEOUT)


@pytest.fixture
def pauses():
    return Pauses()


@pytest.fixture
def slow(pauses):
    with FaultServer(BODY, pause=pauses) as running:
        yield running


def test_stall(slow, pauses):
    slow.script([Action(stall=0.3, stall_at=1000)])
    with connected(slow, "Connection: close") as sock:
        received = b""
        while len(body_of(received)) < 1000:
            received += sock.recv(4096)
        assert body_of(received) == BODY[:1000]
        assert until(lambda: pauses.seconds == [0.3])
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        sock.settimeout(TIMEOUT)
        pauses.over.set()
        while piece := sock.recv(65536):
            received += piece
    assert body_of(received) == BODY


def test_a_stall_ends_with_the_server():
    threads = threading.active_count()
    with FaultServer(BODY) as server:
        server.script([Action(stall=FOREVER, stall_at=10), Action(silent=True, stall=FOREVER)])
        parts = urlsplit(server.url)
        clients = [http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT) for _ in range(2)]
        clients[0].request("GET", "/")
        assert clients[0].getresponse().read(10) == BODY[:10]  # before the second could take its place
        clients[1].request("GET", "/")
        assert until(lambda: len(server.requests) == 2)
    assert threading.active_count() == threads
    for client in clients:
        client.close()


def test_a_client_that_does_not_read_blocks_no_other():
    with FaultServer(BODY * 50) as server:
        parts = urlsplit(server.url)
        clients = [http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT) for _ in range(4)]
        for client in clients:
            client.request("GET", "/")
            assert client.getresponse().read(10) == BODY[:10]
        for client in clients:
            client.close()


def test_slow_body(slow, pauses):
    pauses.over.set()
    slow.script([Action(rate=10_000)])
    assert body_of(raw(slow, "Connection: close", "Range: bytes=0-2999")[0]) == BODY[:3000]
    assert pauses.seconds == [0.02] * 15  # 200 bytes each


def test_slow_headers(slow, pauses):
    pauses.over.set()
    slow.script([Action(head_seconds=0.3)])
    reply, _ = raw(slow, "Connection: close", "Range: bytes=0-9")
    assert body_of(reply) == BODY[:10]
    assert len(pauses.seconds) == len(reply) - 10
    assert sum(pauses.seconds) == pytest.approx(0.3)


@pytest.mark.parametrize("code", [500, 502, 503, 504, 408, 401, 403, 404])
def test_status(server, client, code):
    server.script([Action(status=code)])
    reply = ask(client)
    assert (reply.status, reply.read()) == (code, f"status {code}\n".encode())
    assert ask(client).read() == BODY


def test_status_with_retry_after(server, client):
    server.script([Action(status=429, headers={"Retry-After": "1"})])
    reply = ask(client)
    assert (reply.status, reply.headers["Retry-After"]) == (429, "1")


@pytest.mark.parametrize("at", [None, 0, 1000])
def test_no_content_length(server, at):
    server.script([Action(framing="close", cut=at)])
    reply, error = raw(server)
    assert b"Content-Length" not in reply
    assert b"Connection: close" in reply
    assert (body_of(reply), error) == (BODY[:at], None)


def test_chunked(server, client):
    server.script([Action(framing="chunked")])
    reply = ask(client)
    assert (reply.headers["Transfer-Encoding"], reply.headers["Content-Length"]) == ("chunked", None)
    assert reply.read() == BODY
    assert ask(client, Range="bytes=0-0").read() == BODY[:1]
    assert server.requests[0].sent == len(BODY)


@pytest.mark.parametrize("at", [0, 1, 16_384, 20_000, 199_999, 200_000])
def test_chunked_and_cut(server, client, at):
    server.script([Action(framing="chunked", cut=at)])
    with pytest.raises(http.client.IncompleteRead) as cut:
        ask(client).read()
    assert len(cut.value.partial) <= at  # http.client throws away an incomplete chunk
    assert server.requests[0].sent == at


def test_whole_body_for_a_range(server, client):
    server.script([IGNORE_RANGE])
    reply = ask(client, Range="bytes=5-9")
    assert (reply.status, reply.headers["Content-Range"], reply.read()) == (200, None, BODY)


def test_wrong_content_range(server, client):
    server.script([Action(shift=-512), Action(headers={"Content-Range": "bytes 1000-1009/7"})])
    reply = ask(client, Range="bytes=1000-1009")
    assert (reply.status, reply.read()) == (206, BODY[1000:1010])
    assert reply.headers["Content-Range"] == "bytes 488-497/200000"
    reply = ask(client, Range="bytes=1000-1009")
    assert (reply.headers["Content-Range"], reply.read()) == ("bytes 1000-1009/7", BODY[1000:1010])


def test_superset(server, client):
    server.script([Action(widen=100)])
    reply = ask(client, Range="bytes=50-99")
    assert (reply.status, reply.read()) == (206, BODY[:200])
    assert reply.headers["Content-Range"] == "bytes 0-199/200000"


def test_change_lasts(server, client):
    server.script([SERVE, Action(change=(b"new", '"v2"'))])
    first = ask(client)
    assert first.read() == BODY
    for _ in range(2):
        reply = ask(client)
        assert (reply.headers["ETag"], reply.read()) == ('"v2"', b"new")
    assert ask(client, If_Match='"v1"').status == 412


def test_redirects(server, client):
    server.script([REDIRECT_TO_FILE], then=REDIRECT_TO_SELF)
    locations = []
    for _ in range(4):
        reply = ask(client)
        reply.read()
        locations.append((reply.status, reply.headers["Location"]))
    assert locations == [(302, "file:///etc/passwd")] + [(302, "/object.tar")] * 3


def test_gzip_label(server, client):
    server.script([GZIP_LABEL])
    reply = ask(client)
    assert (reply.headers["Content-Encoding"], reply.read()) == ("gzip", BODY)


def test_no_reply(slow, pauses):
    pauses.over.set()
    slow.script([NO_REPLY, Action(silent=True, stall=0.2)])
    assert raw(slow) == (b"", None)
    assert raw(slow) == (b"", None)
    assert pauses.seconds == [0.0, 0.2]


def test_faults_combine_and_the_script_ends(server, client):
    server.script([Action(framing="chunked", cut=5000, reset=True), Action(status=503)])
    assert raw(server)[1] is ConnectionResetError
    assert [ask(client).read() for _ in range(2)] == [b"status 503\n", BODY]
    assert [entry.action.status for entry in server.requests] == [None, 503, None]
    server.clear()
    assert server.requests == []


def test_random_scripts_are_reproducible():
    scripts = [random_script(random.Random(seed), 200_000, 4) for seed in range(300)]
    assert scripts == [random_script(random.Random(seed), 200_000, 4) for seed in range(300)]
    assert {len(script) for script in scripts} == {1, 2, 3, 4}
    faults = [fault for script in scripts for fault in script]
    cuts = {fault.cut for fault in faults if fault.cut is not None}
    assert {0, 1, 511, 512, 513, 199_999} < cuts
    assert max(cuts) < 200_000
    assert {fault.status for fault in faults} == {None, 500, 502, 503, 504}
    assert not any(fault.stall or fault.rate for fault in faults)
    assert all(fault.cut in (None, 0) for fault in random_script(random.Random(1), 0, 50))


def test_200_random_schedules_give_the_right_bytes_or_an_error(server):
    store = HTTPStore(
        server.url,
        client_options={"allow_http": True, "read_timeout": timedelta(seconds=20)},
        retry_config={
            "max_retries": 5,
            "retry_timeout": timedelta(seconds=200),
            "backoff": {
                "init_backoff": timedelta(milliseconds=1),
                "max_backoff": timedelta(milliseconds=5),
                "base": 2,
            },
        },
    )
    whole = 0
    for seed in range(200):
        server.script(random_script(random.Random(seed), len(BODY), 4))
        try:
            read = b"".join(map(bytes, obstore.get(store, "").stream(min_chunk_size=1 << 16)))
        except Exception:  # any error will do; silence will not
            continue
        assert read == BODY, f"seed {seed}"
        whole += 1
    assert whole > 0


def test_other_bytes_with_status_200(server, client):
    server.script([Action(body=b"<html>")])
    reply = ask(client, Range="bytes=0-1")
    assert (reply.status, reply.read()) == (200, b"<html>")
    assert ask(client).read() != b"<html>"
