"""Downloads that are killed and continued: the bytes are those of an undisturbed run, and little is asked for twice."""

from __future__ import annotations

from collections import Counter

import pytest

import tarmac
from downloading.links import QUICK, outputs, statuses, table, timeless
from harness import rounds
from harness.crash import Forked, survive
from harness.web import NOT_HERE, Answer, hosts, picture, serving

pytestmark = [pytest.mark.processes, pytest.mark.long]
ROWS, BLOCK, AT_ONCE = 400, 100, 8
NAMES = [f"h{number}.test" for number in range(20)]


@pytest.fixture
def web():
    def script(request):
        name = request.path.removeprefix("/")
        if not name.isdigit() or int(name) % 50 == 7:
            return NOT_HERE
        return Answer(picture(int(name), 60, 40))

    with serving(script) as server:
        yield server


def source(web, folder):
    return table(folder / "t.parquet", [web.url(NAMES[n % 20], f"/{n}") for n in range(ROWS)])


def test_kills_at_random_moments(web, tmp_path):
    links = source(web, tmp_path)

    def work(name="out"):
        tarmac.download(
            links,
            f"{tmp_path}/{name}/",
            rows_per_shard=BLOCK,
            size=24,
            concurrency=AT_ONCE,
            hosts=hosts(*NAMES),
            **QUICK | {"ignore": ["robots", "content-signal", "tdmrep"]},
        )

    work("quiet")
    quiet = outputs(tmp_path / "quiet")
    before = len(web.requests)

    def check():
        written = outputs(tmp_path / "out") if (tmp_path / "out").exists() else {}
        shards = {name: data for name, data in written.items() if name.endswith(".tar")}
        assert shards == {name: quiet[name] for name in shards}

    struck = survive(rounds(12), lambda seed: Forked(work).crash(seed, 0.5), check)
    work()
    assert outputs(tmp_path / "out") == quiet
    assert timeless(tmp_path / "out") == timeless(tmp_path / "quiet")
    asked = Counter(web.requests[before:])
    assert len(asked) == ROWS
    assert asked.total() <= ROWS + struck * AT_ONCE


def test_another_engine_completes_the_download(web, tmp_path):
    links = source(web, tmp_path)
    options = QUICK | {"rows_per_shard": BLOCK, "size": 24, "hosts": hosts(*NAMES)}
    tarmac.download(links, f"{tmp_path}/quiet/", **options)

    def work():
        tarmac.download(links, f"{tmp_path}/out/", **options)

    survive(2, lambda seed: Forked(work).crash(seed, 0.6), lambda: None)
    report = tarmac.download(links, f"{tmp_path}/out/", jobs=2, **options)
    assert report.written == ROWS - 8
    assert outputs(tmp_path / "out") == outputs(tmp_path / "quiet")
    assert statuses(tmp_path / "out") == statuses(tmp_path / "quiet")


def test_tasks_without_a_driver_share_a_download(web, tmp_path):
    links = source(web, tmp_path)
    options = QUICK | {"rows_per_shard": BLOCK, "size": 24, "hosts": hosts(*NAMES)}
    tarmac.download(links, f"{tmp_path}/quiet/", **options)
    for number in range(2):
        tarmac.download(links, f"{tmp_path}/out/", task=(number, 2), **options)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "quiet")
