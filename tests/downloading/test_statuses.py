"""Whatever happens to a URL, its row has one status that says so, and the totals are those of the server."""

from __future__ import annotations

import io
import ssl
import struct
import subprocess
from random import Random

import pytest
from PIL import Image

import tarmac
from downloading.links import QUICK, counted, lines, statuses, table
from harness import rounds
from harness.nameserver import name_server
from harness.web import NOT_HERE, Answer, hosts, picture, serving

pytestmark = pytest.mark.processes


def bomb() -> bytes:
    """A small file that claims to be a picture of 100,000 x 100,000 pixels."""
    data = bytearray(picture(1, format="PNG"))
    data[16:24] = struct.pack(">II", 100_000, 100_000)
    return bytes(data)


def gif() -> bytes:
    stream = io.BytesIO()
    Image.new("P", (40, 30)).save(stream, "GIF")
    return stream.getvalue()


ANSWERS = {
    "/good": (Answer(picture(1)), "success"),
    "/gif": (Answer(gif(), headers={"Content-Type": "image/jpeg"}), "success"),
    "/one": (Answer(status=302, headers={"Location": "/two"}), "success"),
    "/two": (Answer(status=307, headers={"Location": "good"}), "success"),
    "/other": (Answer(status=301, headers={"Location": "http://b.test:PORT/good"}), "success"),
    "/loop": (Answer(status=302, headers={"Location": "/loop"}), "redirects"),
    "/file": (Answer(status=302, headers={"Location": "file:///etc/passwd"}), "invalid_url"),
    "/nowhere": (Answer(status=302, headers={"Location": "http://["}), "invalid_url"),
    "/404": (Answer(status=404), "http"),
    "/403": (Answer(status=403), "http"),
    "/410": (Answer(status=410), "http"),
    "/204": (Answer(status=204), "http"),
    "/500": (Answer(status=500), "http"),
    "/html": (Answer(b"<html><img src='x.jpg'></html>", headers={"Content-Type": "image/jpeg"}), "not_image"),
    "/empty": (Answer(b""), "not_image"),
    "/truncated": (Answer(picture(1)[:-400]), "bad_image"),
    "/truncated.png": (Answer(picture(1, format="PNG")[:-400]), "bad_image"),
    "/bomb": (Answer(bomb()), "too_many_pixels"),
    "/cut": (Answer(picture(1), way="cut"), "truncated"),
    "/gzip": (Answer(b"\x1f\x8b", headers={"Content-Encoding": "br"}), "protocol"),
    "/large": (Answer(bytes(300_000)), "too_large"),
    "/endless": (Answer(picture(1), way="endless"), "too_large"),
    "/stream": (Answer(way="endless"), "not_image"),
    "/pieces": (Answer(picture(1) + bytes(100_000), way="pieces"), "success"),
    "/page": (Answer(b"<html>" * 20_000), "not_image"),
}
SLOW = {"/stall": Answer(way="stall"), "/drip": Answer(bytes(5000), way="drip")}


def test_each_kind_of_answer(tmp_path):
    def script(request):
        if request.path in SLOW:
            return SLOW[request.path]
        answer, _ = ANSWERS.get(request.path, (NOT_HERE, ""))
        headers = {name: value.replace("PORT", str(web.port)) for name, value in dict(answer.headers).items()}
        return Answer(answer.body, answer.status, headers, answer.way)

    with serving(script) as web:
        paths = [*ANSWERS, *SLOW]
        names = [f"h{number}.test" for number in range(len(paths))]
        urls = [web.url(*each) for each in zip(names, paths, strict=True)]
        more = [
            None,
            "",
            "ftp://a.test/x.jpg",
            "http://",
            "no url",
            "http://absent.test/x",
            "http://a b/",
            "//a/b",
        ]
        report = tarmac.download(
            table(tmp_path / "t.parquet", [*urls, *more]),
            f"{tmp_path}/out/",
            hosts=hosts(*names, "a.test", "b.test") | {"absent.test": ""},
            max_file_bytes=200_000,
            url_retries=1,
            final_retry=False,
            **QUICK | {"timeout": 0.5},
        )
    invalid = "invalid_url"
    rest = [invalid, invalid, invalid, invalid, invalid, "dns", invalid, invalid]
    expected = [status for _, status in ANSWERS.values()] + ["timeout"] * len(SLOW) + rest
    rows = lines(tmp_path / "out")
    assert [(row["url"], row["status"]) for row in rows] == list(zip([*urls, *more], expected, strict=True))
    assert report.statuses == dict(counted(tmp_path / "out"))
    assert report.read == len(rows) == report.written + report.failed
    assert {row["http_status"] for row in rows if row["status"] == "http"} == {404, 403, 410, 204, 500}
    assert all(row["error_message"] for row in rows if row["status"] != "success")
    # What cannot change is not repeated.
    asked = web.pictures()
    again = {path for (_, path), number in asked.items() if number > 1}
    assert again == {"/loop", "/500", "/cut", "/stall", "/drip"}
    assert asked[names[paths.index("/500")], "/500"] == 2


ODD = [
    "a", "é", "ß", "☃", "\u202e", "%", "%00", "%zz", "..", "/", "//", "\\", "?", "#", "@", ":", "[", "]", "{", "|", "^",
    "'", '"', "`", "<", " ", "\t", "\n", "\r", "\0", "\x7f", "\x80", "\ud7ff", "😀", "&amp;", "=", "+", ";", "*", "~",
    "$", "xn--a", "-", "_", ".", "1", "0x7f", "a" * 70, "ö" * 70, "%ff", "%0d%0a",
]  # fmt: skip


def odd(random, most):
    return "".join(random.choice(ODD) for _ in range(random.randrange(most)))


def test_odd_urls_have_a_status(tmp_path):
    """Neither a URL nor where a redirect leads ends the run, and what can be fetched is."""
    random = Random(1)

    def script(request):
        if request.path.startswith("/odd"):
            location = odd(Random(request.path), 6).replace("\r", "").replace("\n", "")
            return Answer(status=302, headers={"Location": location.encode().decode("latin-1")})
        return Answer(picture(1))

    with serving(script) as web, name_server(lambda name, _: []) as names:
        here = f"a.test:{web.port}"
        heads = ["http://", "HTTP://", " http://", "http:/", "//", ""]
        links = [
            random.choice(heads)
            + random.choice(
                [
                    here,
                    f"{odd(random, 3)}@{here}",
                    f"A.TEST.:{web.port}",
                    f"a.test:{odd(random, 3)}",
                    f"[{odd(random, 4)}]",
                    odd(random, 5),
                ]
            )
            + random.choice(
                [
                    f"/odd{odd(random, 3)}",
                    f"/{odd(random, 6)}",
                    f"?{odd(random, 4)}",
                    f"#{odd(random, 3)}",
                    odd(random, 4),
                ]
            )
            for _ in range(rounds(400))
        ]
        source = table(tmp_path / "t.parquet", [*links, web.url("a.test", "/good")])
        options = QUICK | {"nameservers": [names.address], "ignore": ["robots", "content-signal", "tdmrep"]}
        options |= {"url_retries": 0, "max_failed": 1.0, "hosts": hosts("a.test"), "timeout": 60.0}
        report = tarmac.download(source, f"{tmp_path}/out/", final_retry=False, **options)
    assert report.read == len(links) + 1 == len(lines(tmp_path / "out"))
    assert {"success", "invalid_url", "dns"} <= set(report.statuses)
    assert set(report.statuses) <= {
        "success", "invalid_url", "dns", "connect", "protocol", "refused_address", "redirects",
    }  # fmt: skip
    assert statuses(tmp_path / "out")[-1] == "success"


@pytest.mark.parametrize("most", [1, 3])
def test_retry_after_is_obeyed_and_limits_are_kept(tmp_path, most):
    """429 with Retry-After: no request is sent early, and never more at a time than allowed."""

    def script(request):
        if request.path == "/busy" and request.number == 0:
            return Answer(status=429, headers={"Retry-After": "1"})
        return NOT_HERE if request.path == "/robots.txt" else Answer(picture(1))

    with serving(script) as web:
        urls = [web.url("a.test", "/busy"), *(web.url("a.test", f"/{number}") for number in range(30))]
        source = table(tmp_path / "t.parquet", urls)
        tarmac.download(source, f"{tmp_path}/out/", host_concurrency=most, hosts=hosts("a.test"), **QUICK)
        assert set(statuses(tmp_path / "out")) == {"success"}
        assert len(web.early) <= most - 1  # those that were on their way when the answer came
        assert web.most["a.test"] <= most
        assert web.count("/robots.txt") == 1
        assert web.count() == 1 + 31 + 1  # robots.txt, and one of them twice


def test_a_certificate_that_nothing_vouches_for(tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert]
    subprocess.run([*command, "-days", "2", "-subj", "/CN=a.test"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with serving(lambda _: Answer(picture(1)), context) as web:
        source = table(tmp_path / "t.parquet", [web.url("a.test", "/x", "https")])
        options = QUICK | {"ignore": ["robots", "content-signal", "tdmrep"], "hosts": hosts("a.test")}
        tarmac.download(source, f"{tmp_path}/strict/", max_failed=1.0, **options)
        tarmac.download(source, f"{tmp_path}/lax/", verify_tls=False, **options)
    assert statuses(tmp_path / "strict") == ["tls"]
    assert statuses(tmp_path / "lax") == ["success"]


def test_credentials_are_neither_stored_nor_shown(tmp_path):
    with serving(lambda _: NOT_HERE) as web:
        url = web.url("user:secret@a.test", "/x?size=9")
        hidden = table(tmp_path / "t.parquet", [url, url.replace("http", "ftp", 1), "http://user:secret@[/"])
        report = tarmac.download(hidden, f"{tmp_path}/out/", hosts=hosts("a.test"), max_failed=1.0, **QUICK)
    assert "secret" not in f"{report.to_dict()} {lines(tmp_path / 'out')}"
    assert lines(tmp_path / "out")[0]["url"] == web.url("a.test", "/x?size=9")
    for path in tmp_path.rglob("*"):
        assert path.name == "t.parquet" or not path.is_file() or b"secret" not in path.read_bytes()
