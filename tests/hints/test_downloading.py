"""Hints of downloads."""

from __future__ import annotations

import pytest

import tarmac
from downloading.links import QUICK, table
from harness.hints import follows, hinted
from harness.web import Answer, hosts, picture, serving
from tarmac.errors import UsageError

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.processes]
OPTIONS = QUICK | {"hosts": hosts("a.test")}
REPAIR = "check the network and the name servers, and run the same command again; or a larger `max_failed`."
SELECT = "tarmac select TABLE -o DIR, which repairs such rows or leaves them out, and then DIR."


@follows("`table_format` with one of them.")
def test_a_table_without_an_extension(tmp_path):
    with serving(lambda _: Answer(picture(1))) as web:
        (tmp_path / "links").write_text(f"url\n{web.url('a.test', '/x')}\n")
        with hinted("`table_format` with one of them."):
            tarmac.download("links", "out/", **OPTIONS)
        assert tarmac.download("links", "out/", table_format="csv", **OPTIONS).written == 1


@follows("check the network and the name servers, and run the same command again; or a larger `max_failed`.")
def test_a_network_that_is_down(tmp_path):
    works = []
    with serving(lambda _: Answer(picture(1)) if works else Answer(status=404)) as web:
        source = table(tmp_path / "t.parquet", [web.url("a.test", f"/{number}") for number in range(300)])
        with hinted(REPAIR):
            tarmac.download(source, "out/", **OPTIONS)
        assert tarmac.download(source, "other/", **OPTIONS | {"max_failed": 1.0}).failed == 300
        works.append(True)
        assert tarmac.download(source, "out/", **OPTIONS).written == 300


@follows("`jobs` 1, without `engine` and `task`.")
def test_duplicates_and_several_processes(tmp_path):
    with serving(lambda _: Answer(picture(1))) as web:
        source = table(tmp_path / "t.parquet", [web.url("a.test", "/x")] * 2)
        with hinted("`jobs` 1, without `engine` and `task`."):
            tarmac.download(source, "out/", dedup="exact", jobs=2, **OPTIONS)
        assert tarmac.download(source, "out/", dedup="exact", jobs=1, **OPTIONS).written == 1


@follows("`host_concurrency` {}, or fewer workers.")
def test_more_workers_than_requests_to_a_host(tmp_path):
    with serving(lambda _: Answer(picture(1))) as web:
        source = table(tmp_path / "t.parquet", [web.url("a.test", f"/{number}") for number in range(3)])
        options = OPTIONS | {"rows_per_shard": 1, "host_concurrency": 2}
        with hinted("`host_concurrency` {}, or fewer workers.", UsageError):
            tarmac.download(source, "out/", jobs=3, **options)
        assert tarmac.download(source, "out/", jobs=1, **options).written == 3
        assert tarmac.download(source, "more/", jobs=3, **options | {"host_concurrency": 3}).written == 3


@follows("{}, or the address alone.")
def test_a_network_with_the_bits_of_a_host(tmp_path):
    with serving(lambda _: Answer(picture(1))) as web:
        source = table(tmp_path / "t.parquet", [web.url("a.test", "/x")])
        with hinted("{}, or the address alone.", UsageError) as caught:
            tarmac.download(source, "out/", **OPTIONS | {"allow_networks": ["127.0.0.1/8"]})
        network = caught.value.hint.partition(",")[0]
        for number, allowed in enumerate((network, "127.0.0.1")):
            assert (
                tarmac.download(source, f"{number}/", **OPTIONS | {"allow_networks": [allowed]}).written == 1
            )


@follows("tarmac select TABLE -o DIR, which repairs such rows or leaves them out, and then DIR.")
@pytest.mark.parametrize("name", ["links.csv", "links.jsonl"])
def test_a_damaged_table_of_text(name, tmp_path):
    with serving(lambda _: Answer(picture(1))) as web:
        url = web.url("a.test", "/x").encode()
        texts = {
            "links.csv": b"url,text\n%s,\xff\n%s\n" % (url, url),
            "links.jsonl": b'{"url": "%s", "text": "\xff"}\nno object\n' % url,
        }
        (tmp_path / name).write_bytes(texts[name])
        with hinted(SELECT) as caught:
            tarmac.download(name, "out/", **OPTIONS)
        assert "line " in str(caught.value)
        assert name in caught.value.location
        tarmac.select(name, "selected")
        assert tarmac.download("selected", "out/", **OPTIONS).written == 1
