"""Those who offer pictures can refuse, in four ways; each of them is honoured, and can be ignored by name."""

from __future__ import annotations

import json

import pytest

import tarmac
from downloading.links import LOOPBACK, lines, statuses, table
from harness import rounds
from harness.memory import peak, reset_peak
from harness.web import NOT_HERE, Answer, hosts, picture, serving
from tarmac.downloading.network.consent import Sites
from tarmac.downloading.network.settings import Web

pytestmark = pytest.mark.processes

ROBOTS, TAG, SIGNAL, TDM = "robots", "x-robots-tag", "content-signal", "tdmrep"
ALL = "User-agent: *\n"
X = "X-Robots-Tag"

# What a site says: its robots.txt, its tdmrep.json and its headers; and the check that refuses, if any.
CASES: list[tuple[str, object, list[tuple[str, str]], str]] = [
    ("", None, [], ""),
    (f"{ALL}Disallow: /", None, [], ROBOTS),
    (f"{ALL}Disallow:", None, [], ""),
    (f"{ALL}Disallow: /img", None, [], ROBOTS),
    (f"{ALL}Disallow: /other", None, [], ""),
    (f"{ALL}Disallow: /\nAllow: /img", None, [], ""),
    (f"{ALL}Disallow: /*.jpg$", None, [], ROBOTS),
    (f"{ALL}Disallow: /*.png$", None, [], ""),
    ("User-agent: tarmac\nDisallow: /", None, [], ROBOTS),
    ("User-agent: TARMAC\nDisallow: /", None, [], ROBOTS),
    ("User-agent: otherbot\nDisallow: /", None, [], ""),
    (f"User-agent: tarmac\nAllow: /\n\n{ALL}Disallow: /", None, [], ""),
    (f"User-agent: tarmac\nDisallow: /\n\n{ALL}Allow: /", None, [], ROBOTS),
    ("User-agent: otherbot\nUser-agent: tarmac\nDisallow: /", None, [], ROBOTS),
    ("<html>not found</html>", None, [], ""),
    ("", None, [(X, "noai")], TAG),
    ("", None, [(X, "noimageai")], TAG),
    ("", None, [(X, "noindex")], TAG),
    ("", None, [(X, "noimageindex")], TAG),
    ("", None, [(X, "none")], TAG),
    ("", None, [(X, "NOAI, nofollow")], TAG),
    ("", None, [(X, "nofollow, noarchive")], ""),
    ("", None, [(X, "all")], ""),
    ("", None, [(X, "nofollow"), (X, "noai")], TAG),
    ("", None, [(X, "tarmac: noai")], TAG),
    ("", None, [(X, "otherbot: noai")], ""),
    ("", None, [(X, "otherbot: nofollow, noai")], ""),
    ("", None, [(X, "otherbot: nofollow, tarmac: noai")], TAG),
    ("", None, [(X, "unavailable_after: 25 Jun 2030, noai")], TAG),
    ("", None, [(X, "max-image-preview: large")], ""),
    ("", None, [("Content-Signal", "ai-train=no")], SIGNAL),
    ("", None, [("Content-Signal", "search=yes, ai-train=no")], SIGNAL),
    ("", None, [("Content-Signal", "search=no, ai-train=yes")], ""),
    (f"{ALL}Content-Signal: search=yes,ai-train=no\nAllow: /", None, [], SIGNAL),
    (f"{ALL}Content-Signal: search=yes,ai-input=no\nAllow: /", None, [], ""),
    (f"{ALL}Content-Signal: ai-train=no\n\nUser-agent: tarmac\nContent-Signal: ai-train=yes\nAllow: /", None, [], ""),
    (f"{ALL}Content-Signal: /img ai-train=no\nAllow: /", None, [], SIGNAL),
    (f"{ALL}Content-Signal: /other ai-train=no\nAllow: /", None, [], ""),
    ("", None, [("tdm-reservation", "1")], TDM),
    ("", None, [("tdm-reservation", "0")], ""),
    ("", [{"location": "/", "tdm-reservation": 1}], [], TDM),
    ("", [{"location": "/img*", "tdm-reservation": 1}], [], TDM),
    ("", [{"location": "/other", "tdm-reservation": 1}], [], ""),
    ("", [{"location": "/", "tdm-reservation": 1}, {"location": "/img", "tdm-reservation": 0}], [], ""),
    ("", "not a list", [], ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def web():
    def script(request):
        robots, reservations, headers, _ = CASES[int(request.host.partition(".")[0][1:])]
        if request.path == "/robots.txt":
            return Answer(robots.encode()) if robots else NOT_HERE
        if request.path == "/.well-known/tdmrep.json":
            return NOT_HERE if reservations is None else Answer(json.dumps(reservations).encode())
        return Answer(picture(1), headers=headers)

    with serving(script) as server:
        yield server


def run(web, folder, **options):
    names = [f"h{number}.test" for number in range(len(CASES))]
    source = table(folder / "t.parquet", [web.url(name, "/img/1.jpg") for name in names])
    tarmac.download(
        source, f"{folder}/out/", hosts=hosts(*names), allow_networks=LOOPBACK, max_failed=1.0, **options
    )
    return lines(folder / "out")


def test_every_way_to_refuse(web, tmp_path):
    before = len(web.requests)
    wrong = []
    for (*said, expected), row in zip(CASES, run(web, tmp_path), strict=True):
        status = "opted_out" if expected else "success"
        if row["status"] != status or not (row["error_message"] or "").startswith(expected):
            wrong.append((said, expected, row["status"], row["error_message"]))
    assert wrong == []
    assert len(CASES) >= 40
    # What robots.txt or tdmrep.json refuses is not even asked for.
    asked = {host for host, path in web.requests[before:] if path.startswith("/img")}
    for number, (_, _, headers, expected) in enumerate(CASES):
        assert (f"h{number}.test" in asked) == (not expected or bool(headers))


@pytest.mark.parametrize("ignored", [ROBOTS, TAG, SIGNAL, TDM])
def test_each_can_be_ignored_by_name(web, tmp_path, ignored):
    for (*_, expected), row in zip(CASES, run(web, tmp_path, ignore=[ignored]), strict=True):
        assert row["status"] == ("success" if expected in ("", ignored) else "opted_out"), (expected, row)


def test_rules_are_asked_for_once_and_not_at_all_if_they_are_ignored(web, tmp_path):
    before = len(web.requests)
    source = table(tmp_path / "t.parquet", [web.url("h0.test", f"/img/{number}.jpg") for number in range(50)])
    options = {"hosts": hosts("h0.test"), "allow_networks": LOOPBACK, "rows_per_shard": 10}
    tarmac.download(source, f"{tmp_path}/a/", **options)
    asked = [path for _, path in web.requests[before:]]
    assert (asked.count("/robots.txt"), asked.count("/.well-known/tdmrep.json")) == (1, 1)
    tarmac.download(source, f"{tmp_path}/b/", ignore=[ROBOTS, SIGNAL, TDM, TAG], **options)
    assert len(web.requests) == before + 2 + 50 + 50
    assert web.agents == {f"tarmac/{tarmac.__version__}"}


@pytest.mark.heavy
def test_memory_does_not_grow_with_the_number_of_sites():
    """Few have long rules, and many have short ones; none of them is asked for twice."""

    def robots(number: int) -> str:
        kind = "pages" if number % 500 else "x" * 200 + "/*"
        return ALL + f"Disallow: /{number}\n" + f"Disallow: /{kind}\n" * (2 if number % 500 else 300)

    count = rounds(20_000)
    sites = Sites(Web())
    for number in range(2000):
        sites.put(f"http://before{number}.test:80", {"/robots.txt": robots(number)})
    before = reset_peak()
    for number in range(count):
        sites.put(f"http://h{number}.test:80", {"/robots.txt": robots(number)})
    grown = peak() - before
    print(f"{count} sites: {grown / 1e6:.0f} MB more")
    assert grown < 64e6
    for number in range(0, count, 997):
        rules = sites.get(f"http://h{number}.test:80")
        assert rules.refusal(f"http://h{number}.test/{number}", Web()) == "robots: disallowed"
        assert rules.refusal(f"http://h{number}.test/x{number}", Web()) == ""
    assert sites.get("http://other.test:80") is None


def test_nothing_is_fetched_while_the_rules_are_unknown(tmp_path):
    """A robots.txt that fails forbids everything; when it is back, it counts."""

    def script(request):
        if request.path == "/robots.txt":
            return Answer(status=503) if request.number < 4 else Answer(b"User-agent: *\nDisallow: /private")
        return Answer(picture(1))

    with serving(script) as web:
        source = table(tmp_path / "t.parquet", [web.url("a.test", "/open"), web.url("a.test", "/private/1")])
        options = {"hosts": hosts("a.test"), "allow_networks": LOOPBACK, "backoff": 0.01}
        options |= {"url_retries": 1, "ignore": [TDM], "max_failed": 1.0}
        tarmac.download(source, f"{tmp_path}/out/", final_retry=False, **options)
        assert [row["status"] for row in lines(tmp_path / "out")] == ["rules", "rules"]
        assert web.count("/open") == 0
        tarmac.download(source, f"{tmp_path}/out/", final_retry=False, retry="transient", **options)
        assert [row["status"] for row in lines(tmp_path / "out")] == ["success", "opted_out"]
        assert web.count("/private") == 0


def test_each_port_of_a_host_is_asked_once_for_its_rules(tmp_path):
    """While one is asked for them, an answer of another one arrives: that starts no second question."""

    def script(request):
        if request.path == "/robots.txt":
            return Answer(b"User-agent: *\nAllow: /", delay=0.5)
        return Answer(picture(int(request.path[1:])), delay=0.1)

    with serving(script) as one, serving(script) as other:
        links = [one.url("a.test", "/0"), *(other.url("a.test", f"/{number}") for number in range(1, 40))]
        source = table(tmp_path / "t.parquet", [*links, *(one.url("a.test", f"/{n}") for n in range(40, 60))])
        options = {"hosts": hosts("a.test"), "allow_networks": LOOPBACK, "ignore": [TDM]}
        tarmac.download(source, f"{tmp_path}/out/", **options)
        assert statuses(tmp_path / "out") == ["success"] * 60
        assert (one.count("/robots.txt"), other.count("/robots.txt")) == (1, 1)


def test_rules_on_another_host_are_asked_for_within_its_limits(tmp_path):
    """Twenty sites keep their robots.txt on one host, from which pictures are fetched, too."""
    names = [f"h{number}.test" for number in range(20)]

    def script(request):
        if request.path == "/robots.txt" and request.host in names:
            return Answer(status=301, headers={"Location": f"http://b.test:{web.port}/rules/{request.host}"})
        if request.path.startswith("/rules/h7"):
            return Answer(b"User-agent: *\nDisallow: /", delay=0.02)
        if request.path.startswith("/rules/"):
            return Answer(b"User-agent: *\nAllow: /", delay=0.02)
        name = request.path[1:]
        return Answer(picture(int(name)), delay=0.02) if name.isdigit() else NOT_HERE

    with serving(script) as web:
        links = [web.url("b.test", f"/{n}") for n in range(40)] + [web.url(name, "/1") for name in names]
        source = table(tmp_path / "t.parquet", links)
        options = {"hosts": hosts("b.test", *names), "allow_networks": LOOPBACK, "ignore": [TDM]}
        tarmac.download(source, f"{tmp_path}/out/", host_concurrency=2, **options)
        assert [row["url"] for row in lines(tmp_path / "out") if row["status"] != "success"] == [links[47]]
        assert lines(tmp_path / "out")[47]["status"] == "opted_out"
        assert web.most["b.test"] <= 2
        assert web.count("/robots.txt") == 21
        assert web.count("/rules/") == 20
