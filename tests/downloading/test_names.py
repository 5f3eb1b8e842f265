"""Names of hosts are resolved by name servers: each once, within limits, and never to an address that is refused."""

from __future__ import annotations

import asyncio

import pytest

import tarmac
from downloading.links import QUICK, lines, statuses, table
from harness.nameserver import FAILING, SILENT, name_server
from harness.web import NOT_HERE, Answer, picture, serving
from tarmac.downloading.network import resolver
from tarmac.downloading.network.resolver import KEPT, AddressPolicy, Resolver, UnknownName
from tarmac.downloading.network.settings import Web

pytestmark = pytest.mark.processes
NAMES = [f"h{number}.test" for number in range(12)]


@pytest.fixture
def web():
    def script(request):
        name = request.path.removeprefix("/")
        return Answer(picture(int(name), 60, 40)) if name.isdigit() else NOT_HERE

    with serving(script) as server:
        yield server


def test_each_name_is_asked_for_once(web, tmp_path, monkeypatch):
    monkeypatch.setattr(resolver, "_QUERY_TIMEOUT", 60.0)
    with name_server(lambda name, _: ["127.0.0.1"]) as names:
        links = [web.url(NAMES[number % 12], f"/{number}") for number in range(240)]
        source = table(tmp_path / "t.parquet", links)
        options = QUICK | {"nameservers": [names.address], "rows_per_shard": 60}
        tarmac.download(source, f"{tmp_path}/out/", **options)
    assert set(statuses(tmp_path / "out")) == {"success"}
    assert names.questions == {(name, kind): 1 for name in NAMES for kind in ("A", "AAAA")}


def test_names_without_an_answer_have_a_status_and_hold_up_nothing(web, tmp_path, monkeypatch):
    """No such name, a server that fails, one that is silent, and one that has the address only later."""
    monkeypatch.setattr(resolver, "_QUERY_TIMEOUT", 0.5)

    def script(name, number):
        kinds = {"absent.test": [], "failing.test": FAILING, "silent.test": SILENT, "v6.test": ["::1"]}
        late = [] if number == 0 else ["127.0.0.1"]
        return late if name == "late.test" else kinds.get(name, ["127.0.0.1"])

    hosts = ["absent.test", "failing.test", "silent.test", "late.test", "v6.test", *NAMES]
    with name_server(script) as names:
        source = table(tmp_path / "t.parquet", [web.url(host, "/1") for host in hosts])
        options = QUICK | {"nameservers": [names.address], "allow_networks": ["127.0.0.1/32"]}
        tarmac.download(source, f"{tmp_path}/out/", url_retries=1, **options)
    assert statuses(tmp_path / "out") == ["dns"] * 3 + ["success", "refused_address"] + ["success"] * 12
    assert {name for name, _ in names.questions} == set(hosts)  # and none with a search domain
    assert names.questions["absent.test", "A"] >= 2  # at the end of the run again
    assert names.questions["late.test", "A"] >= 2


def test_search_domains_of_this_machine_do_not_change_names(web, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALDOMAIN", "inside.test")
    monkeypatch.setenv("RES_OPTIONS", "ndots:5")
    with name_server(lambda name, _: ["127.0.0.1"] if name.endswith("inside.test") else []) as names:
        source = table(tmp_path / "t.parquet", [web.url("a.test", "/1")])
        options = QUICK | {"nameservers": [names.address], "url_retries": 0}
        tarmac.download(source, f"{tmp_path}/out/", final_retry=False, max_failed=1.0, **options)
    assert statuses(tmp_path / "out") == ["dns"]
    assert {name for name, _ in names.questions} == {"a.test"}


def test_a_name_that_changes_to_a_private_address(web, tmp_path):
    """The second job asks again, and gets the address of a server inside."""
    with serving(lambda _: Answer(picture(1)), address="127.0.0.2") as inside:
        answers = {0: ["127.0.0.1"], 1: ["127.0.0.2"], 2: ["10.0.0.1", "::ffff:127.0.0.2"]}
        with name_server(lambda _, number: answers[number]) as names:
            options = QUICK | {"nameservers": [names.address], "allow_networks": ["127.0.0.1/32"]}
            for number, port in enumerate((web.port, inside.port, inside.port)):
                source = table(tmp_path / f"{number}.parquet", [f"http://turns.test:{port}/1"] * 3)
                tarmac.download(source, f"{tmp_path}/{number}/", max_failed=1.0, **options)
    assert [set(statuses(tmp_path / str(number))) for number in range(3)] == [
        {"success"},
        {"refused_address"},
        {"refused_address"},
    ]
    assert inside.connections == 0
    assert "not a public address" in lines(tmp_path / "1")[0]["error_message"]


def test_addresses_are_kept_for_a_while_and_their_number_is_limited(monkeypatch):
    monkeypatch.setattr(resolver, "MAX_NAMES", 10)
    now = [0.0]

    async def ask(address):
        names = Resolver(AddressPolicy(Web(nameservers=[address])), lambda: now[0])
        try:
            for _ in range(3):
                assert await names.addresses("a.test") == ["127.0.0.1"]
                now[0] += KEPT / 2 + 1
            await asyncio.gather(*(names.addresses(f"n{number}.test") for number in range(200)))
            with pytest.raises(UnknownName):
                await names.addresses("absent.test")
            return len(names.known)
        finally:
            await names.close()

    with name_server(lambda name, _: [] if name == "absent.test" else ["127.0.0.1"]) as server:
        assert asyncio.run(ask(server.address)) == 10
    assert server.questions["a.test", "A"] <= 2  # c-ares keeps answers, too, as long as they say
