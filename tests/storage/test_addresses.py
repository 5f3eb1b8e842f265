"""In secure mode, redirects cannot lead into private networks."""

from __future__ import annotations

import ipaddress
import re
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness import rounds
from harness.faultserver import FaultServer
from harness.servers import redirector
from harness.shards import plain
from storage.caches import FAST
from tarmac.errors import ConnectFailed, TarmacError, UnsafeUrl
from tarmac.storage import Cache, open_read, open_write, read_range, stat
from tarmac.storage.addresses import network_of

SHARD = plain()
INSIDE = {
    "127.0.0.1": "this machine",
    "127.255.1.2": "this machine",
    "0.0.0.0": "this machine",
    "::1": "this machine",
    "::": "this machine",
    "::ffff:127.0.0.1": "this machine",
    "::ffff:7f00:1": "this machine",
    "::127.0.0.1": "this machine",
    "64:ff9b::7f00:1": "this machine",
    "2002:7f00:1::": "this machine",
    "169.254.169.254": "the link-local network",
    "::ffff:169.254.169.254": "the link-local network",
    "64:ff9b::a9fe:a9fe": "the link-local network",
    "fe80::1": "the link-local network",
    "fe80::1%eth0": "the link-local network",
    "10.1.2.3": "a private network",
    "172.16.0.1": "a private network",
    "172.31.255.255": "a private network",
    "192.168.1.1": "a private network",
    "100.64.0.1": "a private network",
    "::ffff:10.1.2.3": "a private network",
    "::ffff:100.64.0.1": "a private network",
    "fd00::1": "a private network",
    "fc00::1": "a private network",
    "224.0.0.1": "a reserved network",
    "255.255.255.255": "a reserved network",
    "ff02::1": "a reserved network",
}
OUTSIDE = ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
FURTHER = ["169.254.169.254", "10.0.0.1", "[fd00::1]", "[::ffff:169.254.169.254]", "[fe80::1]", "192.168.0.1"]


@pytest.mark.parametrize(("address", "network"), INSIDE.items())
def test_private_addresses(address, network):
    assert network_of(address) == network


@pytest.mark.parametrize("address", OUTSIDE)
def test_public_addresses(address):
    assert network_of(address) == ""


@given(st.ip_addresses(v=4))
@settings(deadline=None, derandomize=True, max_examples=rounds(300))
def test_all_notations_of_an_address_are_in_the_same_network(address):
    number, expected = int(address), network_of(str(address))
    assert bool(expected) or address.is_global
    for written in (f"::ffff:{address}", str(ipaddress.IPv6Address((0x64FF9B << 96) | number))):
        assert network_of(written) == expected


@pytest.fixture
def never_dialled(monkeypatch):
    """Allow connections to this machine only; record the others and let them fail."""
    dialled = []
    real = socket.create_connection

    def connect(address, *args, **options):
        if not address[0].startswith("127."):
            dialled.append(address[0])
            raise OSError("no route")
        return real(address, *args, **options)

    monkeypatch.setattr(socket, "create_connection", connect)
    return dialled


WAYS = {
    "read": lambda url, _: list(tarmac.read(url, storage=FAST)),
    "cache": lambda url, directory: list(tarmac.read(url, storage=FAST, cache=Cache(directory))),
    "stat": lambda url, _: stat(url, FAST),
    "range": lambda url, _: read_range(url, 0, 10, FAST),
    "list": lambda url, _: list(tarmac.read(f"@{url}", storage=FAST)),
    "put": lambda url, _: upload(url),
}


def upload(url):
    sink = open_write(url, FAST)
    sink.write(b"x")
    sink.commit()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("target", FURTHER)
def test_redirects_into_private_networks_are_rejected(tmp_path, monkeypatch, never_dialled, way, target):
    monkeypatch.setenv("TARMAC_SECURE", "1")
    with redirector(lambda path: f"http://{target}/latest/meta-data") as url:
        with pytest.raises(UnsafeUrl, match=re.escape(target.strip("[]"))) as caught:
            WAYS[way](f"{url}/x.tar?sig=SECRET", tmp_path)
    assert never_dialled == []
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("kind", ["public", "private"])
@pytest.mark.parametrize("hops", [1, 2])
def test_host_names_are_resolved_before_the_check(tmp_path, monkeypatch, never_dialled, kind, hops):
    """The first server counts as public; a host name that resolves to this machine is private."""
    monkeypatch.setenv("TARMAC_SECURE", "1")
    real = socket.getaddrinfo

    def resolve(host, port, *args, **options):
        if host == "inside.example":
            return real("127.0.0.1" if kind == "public" else "10.0.0.1", port, *args, **options)
        return real("127.0.0.1" if host == "outside.example" else host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    if kind == "public":
        first = iter([""])  # for the first connection only
        monkeypatch.setattr(
            "tarmac.storage.addresses.network_of", lambda directory: next(first, "this machine")
        )
    with (
        FaultServer(SHARD) as server,
        redirector(lambda _: server.url.replace("127.0.0.1", "inside.example")) as last,
    ):
        targets = {"/a.tar": last.replace("127.0.0.1", "outside.example") + "/b.tar"}
        with redirector(targets.get) as begin:
            start = f"{begin}/a.tar" if hops == 2 else f"{last}/b.tar"
            with pytest.raises(UnsafeUrl):
                open_read(start.replace("127.0.0.1", "outside.example"), FAST)
        assert server.requests == []


def test_urls_of_the_user_may_be_private(monkeypatch):
    """A URL of the user may name this machine, and redirects may stay in its network."""
    monkeypatch.setenv("TARMAC_SECURE", "1")
    with FaultServer(SHARD) as server, redirector(lambda _: server.url) as url:
        assert len(list(tarmac.read(server.url, storage=FAST))) == 3
        assert len(list(tarmac.read(f"{url}/x.tar", storage=FAST))) == 3
        assert stat(f"{url}/x.tar", FAST).size == len(SHARD)
        assert read_range(f"{url}/x.tar", 5, 15, FAST, '"v1"') == SHARD[5:15]


def test_a_redirect_to_the_public_network_is_followed(monkeypatch, never_dialled):
    monkeypatch.setenv("TARMAC_SECURE", "1")
    with redirector(lambda _: "http://8.8.8.8/x.tar") as url, pytest.raises(ConnectFailed):
        open_read(f"{url}/x.tar", FAST)
    assert set(never_dialled) == {"8.8.8.8"}


@pytest.mark.parametrize(
    "target",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "//",
        "http://",
        "http://[::1",
        "http://a:b/",
        "http://" + "a" * 300,
        "pipe:id",
    ],
)
def test_redirects_to_unresolvable_hosts(monkeypatch, target):
    monkeypatch.setenv("TARMAC_SECURE", "1")
    with redirector(lambda _: target) as url, pytest.raises(TarmacError):
        open_read(f"{url}/x.tar", FAST)
