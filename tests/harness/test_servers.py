"""The servers of the harness start, serve requests, and leave nothing behind."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import obstore
import psutil
import pytest
from obstore.store import HTTPStore

from harness import reserved_ports, running
from harness.servers import (
    MissingComponent,
    ServerFailed,
    aistore,
    azurite,
    install_azurite,
    nginx,
    redirector,
    required,
    seaweed_s3,
)
from harness.waiting import TIMEOUT

BODY = bytes(range(256)) * 1000
LARGE = os.urandom(12 << 20)
HTTP = {"allow_http": True}


def fetch(method: str, url: str, body: bytes | None = None, **headers: str):
    """Send a request without following redirects; return status, headers and body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT)
    try:
        connection.request(method, f"{parts.path}?{parts.query}", body, headers)
        reply = connection.getresponse()
        return reply.status, dict(reply.headers), reply.read()
    finally:
        connection.close()


@pytest.fixture
def held(monkeypatch):
    """The ports of the servers that a test starts, reserved until its end."""
    ports: list[int] = []
    with contextlib.ExitStack() as stack:

        def holding(count: int):
            more = stack.enter_context(reserved_ports(count))
            ports.extend(more)
            return contextlib.nullcontext(more)

        monkeypatch.setattr("harness.reserved_ports", holding)
        yield ports


def refuses(url: str) -> bool:
    """Return whether connections to a reserved port are refused."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT).close()
    except ConnectionRefusedError:
        return True
    return False


def test_reserved_ports():
    with reserved_ports(3) as ports:
        assert len(set(ports)) == 3
        for port in ports:
            assert refuses(f"http://127.0.0.1:{port}")
            with socket.socket() as other, pytest.raises(OSError, match=f"Errno {errno.EADDRINUSE}"):
                other.bind(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)):
                assert not refuses(f"http://127.0.0.1:{port}")
            assert refuses(f"http://127.0.0.1:{port}")


def test_nginx_serves_ranges_and_etags(tmp_path, held):
    (tmp_path / "x.tar").write_bytes(BODY)
    with required(nginx(tmp_path)) as url:
        status, headers, body = fetch("GET", f"{url}/x.tar")
        assert (status, body) == (200, BODY)
        assert headers["ETag"]
        status, headers, body = fetch("GET", f"{url}/x.tar", Range="bytes=10-19")
        assert (status, body) == (206, BODY[10:20])
        assert headers["Content-Range"] == f"bytes 10-19/{len(BODY)}"
        assert fetch("GET", f"{url}/x.tar", **{"If-Match": '"other"'})[0] == 412
        assert fetch("GET", f"{url}/none.tar")[0] == 404
        store = HTTPStore(url, client_options=HTTP)
        assert bytes(obstore.get_range(store, "x.tar", start=5, end=9)) == BODY[5:9]
        assert obstore.head(store, "x.tar")["size"] == len(BODY)
    assert refuses(url)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_nginx_runs_as_a_plain_user(tmp_path):
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    program = (
        "import sys, urllib.request; from pathlib import Path; from harness.servers import nginx\n"
        "with nginx(Path('/etc')) as url: sys.exit(urllib.request.urlopen(url + '/hostname').status != 200)"
    )
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    dropped = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    env.pop("TMPDIR", None)
    readable = subprocess.run(
        [*dropped, sys.executable, "-c", "import harness"], env=env, capture_output=True
    )
    if readable.returncode:
        pytest.skip("a plain user cannot read this checkout")
    with required(nginx(tmp_path)):
        subprocess.run([*dropped, sys.executable, "-c", program], env=env, check=True, timeout=600)


def test_s3_leaves_nothing_behind(held):
    before = set(psutil.Process().children(recursive=True))
    with required(seaweed_s3()) as server:
        assert any(Path("/tmp").glob(f"seaweedfs-*-{port}.sock") for port in held)
        assert set(psutil.Process().children(recursive=True)) - before
    assert refuses(server.endpoint)
    assert not [path for port in held for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]
    assert set(psutil.Process().children(recursive=True)) <= before


def test_aistore_redirects_to_its_target(tmp_path):
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "x.tar").write_bytes(BODY)
    with aistore(tmp_path) as url:
        address = f"{url}/v1/objects/bucket/x.tar?provider=ais"
        status, headers, _ = fetch("GET", address)
        assert status == 307
        assert urlsplit(headers["Location"]).port != urlsplit(url).port
        assert urlsplit(headers["Location"]).query.startswith("provider=ais&pid=")
        status, headers, body = fetch("GET", headers["Location"], Range="bytes=-5")
        assert (status, body) == (206, BODY[-5:])
        assert headers["Content-Range"] == f"bytes {len(BODY) - 5}-{len(BODY) - 1}/{len(BODY)}"
        assert headers["ETag"]

        store = HTTPStore(address, client_options=HTTP)
        assert bytes(obstore.get(store, "").bytes()) == BODY
        assert bytes(obstore.get_range(store, "", start=7, end=700)) == BODY[7:700]
        assert obstore.head(store, "")["size"] == len(BODY)


def test_aistore_accepts_uploads(tmp_path):
    with aistore(tmp_path) as url:
        status, headers, _ = fetch("PUT", f"{url}/v1/objects/bucket/train/x.tar?provider=ais", LARGE)
        assert status == 307
        assert fetch("PUT", headers["Location"], LARGE)[0] == 200
        assert os.listdir(tmp_path / "bucket" / "train") == ["x.tar"]
        store = HTTPStore(f"{url}/v1/objects/bucket?provider=ais", client_options=HTTP)
        assert bytes(obstore.get(store, "train/x.tar").bytes()) == LARGE
        with pytest.raises(FileNotFoundError):
            obstore.get(store, "none.tar")


def test_aistore_discards_partial_uploads(tmp_path):
    with aistore(tmp_path) as url:
        target = urlsplit(fetch("HEAD", f"{url}/v1/objects/bucket/x.tar")[1]["Location"])
        with socket.create_connection((target.hostname, target.port), timeout=TIMEOUT) as client:
            head = f"PUT {target.path} HTTP/1.1\r\nHost: {target.netloc}\r\nContent-Length: 1000\r\n\r\n"
            client.sendall(head.encode() + b"only this")
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1000).startswith(b"HTTP/1.1 400 ")
        assert os.listdir(tmp_path / "bucket") == []


def test_aistore_stays_in_its_directory(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "root").mkdir()
    with aistore(tmp_path / "root") as url:
        assert fetch("GET", f"{url}/v2/other")[0] == 404
        _, headers, _ = fetch("GET", f"{url}/v1/objects/b/../../secret")
        assert fetch("GET", headers["Location"])[0] == 404


def test_in_process_servers_leave_no_thread(tmp_path):
    before = threading.active_count()
    with aistore(tmp_path) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        connection.request("GET", "/v1/objects/b/x")
        assert connection.getresponse().read() == b""  # the connection stays open
        assert threading.active_count() > before
    assert threading.active_count() == before
    connection.close()


def test_redirector():
    with redirector(lambda path: f"http://example.invalid{path}", status=302) as url:
        status, headers, _ = fetch("GET", f"{url}/a?b=c")
    assert (status, headers["Location"]) == (302, "http://example.invalid/a?b=c")


def test_a_missing_program_skips_locally_and_fails_in_ci(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(MissingComponent, match="install_azurite"), azurite(tmp_path):
        pass
    with pytest.raises(pytest.skip.Exception, match="Azurite"), required(azurite(tmp_path)):
        pass
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="Azurite"), required(azurite(tmp_path)):
        pass
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingComponent, match="npm"):
        install_azurite(tmp_path)


def test_the_output_of_a_failed_program_is_reported():
    def plan(_home: Path, _ports: list[int]):
        return [sys.executable, "-c", "raise SystemExit('no port for me')"], refuse, None

    def refuse() -> None:
        raise ConnectionRefusedError

    with pytest.raises(ServerFailed, match="no port for me"), running(plan, 1):
        pass
