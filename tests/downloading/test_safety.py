"""No URL leads to an address that is not public: no literal in any notation, no redirect, no name."""

from __future__ import annotations

import socket
import sys

import pytest

import tarmac
from downloading.links import QUICK, lines, table
from harness.web import NOT_HERE, Answer, hosts, picture, serving
from tarmac.downloading.network.resolver import Resolver

pytestmark = pytest.mark.processes

# Notations of 127.0.0.2 and of other addresses inside; PORT is where a server would answer.
LITERALS = [
    "127.0.0.2", "127.2", "127.0.2", "2130706434", "0x7f000002", "0x7F.0.0.2", "0177.0.0.2", "017700000002", "0x7f.2",
    "127.0.0.2.", "[::ffff:127.0.0.2]", "[::ffff:7f00:2]", "[::127.0.0.2]", "[64:ff9b::7f00:2]", "[2002:7f00:2::]",
    "0", "0.0.0.0", "[::]", "[::1]", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "[fd00::1]",
    "[fe80::1]", "[fe80::1%25lo]", "100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
    "①②⑦.⓪.⓪.②", "127。0。0。2", "%31%32%37.0.0.2", "127.0.0.2%00", "127.0.0.2#@b.test", "b.test@127.0.0.2",
]  # fmt: skip
NAMES = {
    "inside.test": "127.0.0.2", "metadata.test": "169.254.169.254", "private.test": "10.1.2.3",
    "both.test": "10.0.0.1 127.0.0.2",
    "six.test": "::1", "mapped.test": "::ffff:127.0.0.2", "shared.test": "100.64.0.1", "zero.test": "0.0.0.0",
}  # fmt: skip
SCHEMES = [
    "file:///etc/passwd",
    "ftp://127.0.0.2/",
    "gopher://127.0.0.2/",
    "data:image/png;base64,AA",
    "pipe:cat",
]


@pytest.fixture(scope="module")
def connections():
    """The addresses that this process connects to, by TCP: Python's own record of them."""
    addresses: list[str] = []
    watching = [True]

    def note(event, values):
        if watching and event == "socket.connect" and values[0].type == socket.SOCK_STREAM:
            addresses.append(values[1][0])

    sys.addaudithook(note)  # there is no way to remove it
    yield addresses
    watching.clear()


@pytest.fixture
def inside():
    """A server that must not be reached."""
    with serving(lambda _: Answer(picture(1)), address="127.0.0.2") as web:
        yield web


def test_attacks(tmp_path, inside, connections):
    literals = [f"http://{each}:{inside.port}/x" for each in LITERALS]
    names = [f"http://{each}:{inside.port}/x" for each in NAMES]
    redirects = [*literals[:12], *names[:3], *SCHEMES[:2]]

    def script(request):
        number = request.path.removeprefix("/to/")
        if not number.isdigit():
            return NOT_HERE
        location = redirects[int(number)].encode().decode("latin-1")
        return Answer(status=302, headers={"Location": location})

    with serving(script) as web:
        led = [web.url("a.test", f"/to/{number}") for number in range(len(redirects))]
        urls = [*literals, *names, *SCHEMES, *led]
        assert len(urls) >= 60
        connections.clear()
        report = tarmac.download(
            table(tmp_path / "t.parquet", urls),
            f"{tmp_path}/out/",
            hosts=hosts("a.test") | NAMES,
            **QUICK | {"allow_networks": ["127.0.0.1/32"], "max_failed": 1.0, "url_retries": 0},
        )
    assert inside.connections == 0
    assert set(connections) == {"127.0.0.1"}  # the server that sends redirects
    assert report.written == 0
    assert {row["status"] for row in lines(tmp_path / "out")} <= {
        "refused_address",
        "invalid_url",
        "dns",
        "host_down",
    }
    refused = [row for row in lines(tmp_path / "out") if row["status"] == "refused_address"]
    assert len(refused) > 30


def test_a_name_whose_address_changes_between_check_and_connection(tmp_path, inside, monkeypatch):
    async def resolve(self, host, port=0, family=socket.AF_INET):
        info = {"hostname": host, "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}
        return [info | {"host": "127.0.0.2"}]

    monkeypatch.setattr(Resolver, "resolve", resolve)
    source = table(tmp_path / "t.parquet", [f"http://rebinding.test:{inside.port}/x"])
    tarmac.download(source, f"{tmp_path}/out/", max_failed=1.0, **QUICK | {"allow_networks": []})
    assert lines(tmp_path / "out")[0]["status"] == "refused_address"
    assert inside.connections == 0


def test_networks_that_the_user_allows(tmp_path, inside):
    source = table(tmp_path / "t.parquet", [f"http://127.0.0.2:{inside.port}/x"])
    tarmac.download(source, f"{tmp_path}/out/", **QUICK | {"allow_networks": ["127.0.0.2/32"]})
    assert lines(tmp_path / "out")[0]["status"] == "success"
