"""Each real server starts, does what the readers and writers need of it, and goes away."""

from __future__ import annotations

import contextlib
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
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from harness import reserved_ports, running
from harness.servers import (
    AzureServer,
    MissingComponent,
    S3Server,
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
LARGE = os.urandom(12 << 20)  # three parts of a multipart upload
HTTP = {"allow_http": True}


@pytest.fixture(scope="module")
def s3():
    with required(seaweed_s3()) as server:
        server.make_bucket("data")
        yield server


@pytest.fixture(scope="module")
def open_s3():
    with required(seaweed_s3(anonymous=True)) as server:
        server.make_bucket("data")
        yield server


@pytest.fixture(scope="module")
def azure():
    with required(azurite()) as server:
        server.make_container("data")
        yield server


def fetch(method: str, url: str, body: bytes | None = None, **headers: str):
    """One request, no redirects followed: status, headers, body."""
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
    """The ports of the servers that a test starts, held to its end: nobody else can listen there."""
    ports: list[int] = []
    with contextlib.ExitStack() as stack:

        def holding(count: int):
            more = stack.enter_context(reserved_ports(count))
            ports.extend(more)
            return contextlib.nullcontext(more)

        monkeypatch.setattr("harness.reserved_ports", holding)
        yield ports


def refuses(url: str) -> bool:
    """Whether nothing listens any more at a port that is held."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT).close()
    except ConnectionRefusedError:
        return True
    return False


def check_store(store) -> None:
    """Put, get, range, several ranges, head, list, multipart, delete."""
    obstore.put(store, "a/small.bin", BODY, use_multipart=False)
    assert bytes(obstore.get(store, "a/small.bin").bytes()) == BODY
    assert bytes(obstore.get_range(store, "a/small.bin", start=300, end=1300)) == BODY[300:1300]
    ranges = obstore.get_ranges(store, "a/small.bin", starts=[0, 5000], ends=[10, 5010])
    assert [bytes(part) for part in ranges] == [BODY[:10], BODY[5000:5010]]
    obstore.put(store, "a/large.bin", LARGE, use_multipart=True, chunk_size=5 << 20)
    assert b"".join(map(bytes, obstore.get(store, "a/large.bin").stream())) == LARGE
    assert obstore.head(store, "a/large.bin")["size"] == len(LARGE)
    listed = {entry["path"] for batch in obstore.list(store, "a") for entry in batch}
    assert listed == {"a/small.bin", "a/large.bin"}
    obstore.delete(store, ["a/small.bin", "a/large.bin"])
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "a/small.bin")


def test_reserved_ports_are_refused_to_clients_and_others_and_open_to_a_server():
    with reserved_ports(3) as ports:
        assert len(set(ports)) == 3
        for port in ports:
            assert refuses(f"http://127.0.0.1:{port}")
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
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


def test_nginx_runs_twice_at_once(tmp_path):
    with required(nginx(tmp_path)) as one, required(nginx(tmp_path)) as other:
        assert one != other


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


def test_s3_does_all_operations(s3: S3Server):
    store = S3Store("data", config=s3.config())
    check_store(store)
    obstore.put(store, "once", b"1", mode="create", use_multipart=False)
    with pytest.raises(BaseError, match="exists"):
        obstore.put(store, "once", b"2", mode="create", use_multipart=False)


def test_s3_takes_its_settings_from_the_environment(s3: S3Server, monkeypatch):
    for name, value in s3.env().items():
        monkeypatch.setenv(name, value)
    check_store(S3Store("data"))


def test_s3_refuses_a_wrong_secret(s3: S3Server):
    with pytest.raises(BaseError, match="SignatureDoesNotMatch"):
        obstore.put(S3Store("data", config={**s3.config(), "secret_access_key": "wrong"}), "x", b"1")


def test_s3_has_no_bucket_that_was_not_made(s3: S3Server):
    with pytest.raises(FileNotFoundError):
        obstore.put(S3Store("never-made", config=s3.config()), "x", b"1")


def test_s3_makes_many_buckets_and_the_same_one_twice(s3: S3Server):
    for number in range(12):
        s3.make_bucket(f"bucket{number}")
        s3.make_bucket(f"bucket{number}")
        obstore.put(S3Store(f"bucket{number}", config=s3.config()), "x", b"1")


def test_s3_leaves_nothing_behind(held):
    before = set(psutil.Process().children(recursive=True))
    with required(seaweed_s3()) as server:
        assert any(Path("/tmp").glob(f"seaweedfs-*-{port}.sock") for port in held)
        assert set(psutil.Process().children(recursive=True)) - before
    assert refuses(server.endpoint)
    assert not [path for port in held for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]
    assert set(psutil.Process().children(recursive=True)) <= before


def test_anonymous_s3_serves_the_google_client(open_s3: S3Server):
    check_store(GCSStore("data", config=open_s3.gcs_config()))


def test_anonymous_s3_serves_an_unsigned_s3_client(open_s3: S3Server):
    store = S3Store("data", config=open_s3.config())
    obstore.put(store, "x", BODY)
    assert bytes(obstore.get(store, "x").bytes()) == BODY


def test_azure_does_all_operations(azure: AzureServer):
    check_store(AzureStore("data", config=azure.config()))


def test_azure_refuses_a_wrong_key(azure: AzureServer):
    wrong = {**azure.config(), "account_key": "d3Jvbmc="}
    with pytest.raises((BaseError, PermissionError), match="403"):
        obstore.put(AzureStore("data", config=wrong), "x", b"1")


def test_azure_says_when_a_container_cannot_be_made(azure: AzureServer):
    with pytest.raises(ServerFailed, match="403"):
        AzureServer(azure.endpoint, key="d3Jvbmc=").make_container("refused")


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


def test_aistore_takes_objects(tmp_path):
    with aistore(tmp_path) as url:
        status, headers, _ = fetch("PUT", f"{url}/v1/objects/bucket/train/x.tar?provider=ais", LARGE)
        assert status == 307
        assert fetch("PUT", headers["Location"], LARGE)[0] == 200
        assert os.listdir(tmp_path / "bucket" / "train") == ["x.tar"]
        store = HTTPStore(f"{url}/v1/objects/bucket?provider=ais", client_options=HTTP)
        assert bytes(obstore.get(store, "train/x.tar").bytes()) == LARGE
        with pytest.raises(FileNotFoundError):
            obstore.get(store, "none.tar")


def test_aistore_keeps_no_part_of_an_object(tmp_path):
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


def test_redirector_sends_where_it_is_told():
    with redirector(lambda path: f"http://example.invalid{path}", status=302) as url:
        status, headers, _ = fetch("GET", f"{url}/a?b=c")
    assert (status, headers["Location"]) == (302, "http://example.invalid/a?b=c")


def test_a_missing_program_skips_on_a_desk_and_fails_under_ci(tmp_path, monkeypatch):
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


def test_a_program_that_ends_at_once_is_reported_with_its_output():
    def plan(_home: Path, _ports: list[int]):
        return [sys.executable, "-c", "raise SystemExit('no port for me')"], refuse, None

    def refuse() -> None:
        raise ConnectionRefusedError

    with pytest.raises(ServerFailed, match="no port for me"), running(plan, 1):
        pass
