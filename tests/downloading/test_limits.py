"""The limits of hosts are those of the whole job, however many workers it has."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tarmac
from downloading.links import QUICK, counted, lines, statuses, table
from harness.clusters import import_path
from harness.web import NOT_HERE, Answer, hosts, picture, serving
from tarmac.downloading.network import crawl
from tarmac.downloading.network.board import Board
from tarmac.downloading.network.settings import HOST_CONCURRENCY, Web
from tarmac.errors import UsageError

pytestmark = pytest.mark.processes
NAMES = ["a.test", "b.test"]
ROWS, MOST = 160, 6
COMMANDS = {
    "one": [[]],
    "processes": [["-j", "2"]],
    "tasks": [["--task", f"{number}/3"] for number in range(3)],
    "tasks with processes": [["--task", f"{number}/2", "-j", "2"] for number in range(2)],
    "dask": [["--engine", "dask", "-j", "2"]],
}


@pytest.mark.long
@pytest.mark.parametrize("workers", COMMANDS)
def test_requests_at_a_time(workers, tmp_path):
    def script(request):
        name = request.path.removeprefix("/")
        return Answer(picture(int(name), 40, 30), delay=0.03) if name.isdigit() else NOT_HERE

    with serving(script) as web:
        source = table(tmp_path / "t.parquet", [web.url(NAMES[n % 2], f"/{n}") for n in range(ROWS)])
        command = [sys.executable, "-m", "tarmac", "download", source, "-o", f"{tmp_path}/out/"]
        command += ["--rows-per-shard", "20", "--host-concurrency", str(MOST), "--ignore", "tdmrep"]
        command += ["--allow-networks", "127.0.0.0/8", "--hosts", "a.test=127.0.0.1,b.test=127.0.0.1"]
        environment = os.environ | {"PYTHONPATH": import_path(str(Path(__file__).parents[1]))}
        running = [subprocess.Popen([*command, *options], env=environment) for options in COMMANDS[workers]]
        assert [each.wait() for each in running] == [0] * len(running)
    assert statuses(tmp_path / "out") == ["success"] * ROWS
    least = 1 if workers == "tasks with processes" else 2  # each of four workers has one at a time
    assert all(least <= web.most[name] <= MOST for name in NAMES)
    assert len(web.pictures()) == web.pictures().total() == ROWS
    if workers in ("one", "processes"):
        assert web.count("/robots.txt") == len(NAMES)


@pytest.mark.long
def test_processes_tell_each_other_who_wants_a_pause(tmp_path):
    """The first picture of a host is answered with 429: then none of three processes asks it for a while."""

    def script(request):
        name = request.path.removeprefix("/")
        if name == "0" and not request.number:
            return Answer(status=429, headers={"Retry-After": "2"})
        return Answer(picture(int(name), 40, 30), delay=0.02) if name.isdigit() else NOT_HERE

    with serving(script) as web:
        source = table(tmp_path / "t.parquet", [web.url("a.test", f"/{n}") for n in range(300)])
        options = QUICK | {"rows_per_shard": 100, "host_concurrency": MOST, "hosts": hosts("a.test")}
        tarmac.download(source, f"{tmp_path}/out/", jobs=3, **options)
    assert counted(tmp_path / "out") == {"success": 300}
    assert len(web.early) < 100  # those that began before the others knew; without a word they would be 200
    assert web.most["a.test"] <= MOST
    assert web.count("/robots.txt") == 1


def test_a_process_takes_over_from_one_that_has_died(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    with Board(str(tmp_path / "board")) as here, Board(str(tmp_path / "board")) as there:
        here.execute("INSERT INTO asking VALUES ('http://a.test:80', ?)", (dead.pid,))
        here.execute("INSERT INTO asking VALUES ('http://b.test:80', ?)", (os.getppid(),))
        assert here.may_ask("http://a.test:80")
        assert not here.may_ask("http://b.test:80")
        assert there.rules("http://a.test:80") is None
        here.publish("http://a.test:80", {"/robots.txt": "User-agent: *"})
        assert there.rules("http://a.test:80") == {"/robots.txt": "User-agent: *"}
        here.pause("a.test", 1000.0)
        here.pause("a.test", 1.0)
        assert 1.0 < there.paused("a.test") <= 1000.0
        assert there.paused("b.test") == 0.0


@given(
    workers=st.integers(1, 50),
    most=st.none() | st.integers(1, 60),
    rate=st.none() | st.floats(0.01, 1000),
)
def test_workers_keep_a_limit_together(workers, most, rate):
    web = Web(host_concurrency=most, host_rate=rate)
    if most is not None and most < workers:
        with pytest.raises(UsageError, match="cannot share"):
            web.for_one_of(workers)
        return
    each = web.for_one_of(workers)
    assert 1 <= each.host_concurrency * workers <= (most or max(HOST_CONCURRENCY, workers))
    assert rate is None if each.host_rate is None else each.host_rate * workers == pytest.approx(rate)


def test_slow_answers_do_not_hold_up_others(tmp_path):
    """One in a hundred answers begins only when all others were sent: nothing may wait for them."""
    names = [f"h{number}.test" for number in range(50)]
    count = 600
    released = asyncio.Event()
    served: set[str] = set()

    def script(request):
        name = request.path.removeprefix("/")
        if not name.isdigit():
            return NOT_HERE
        if int(name) % 100 == 5:
            return Answer(picture(int(name) % 50), waits=released)
        served.add(name)
        if len(served) == count - count // 100:
            released.set()
        return Answer(picture(int(name) % 50))

    with serving(script) as web:
        source = table(tmp_path / "t.parquet", [web.url(names[n % 50], f"/{n}") for n in range(count)])
        options = QUICK | {"timeout": 10_000.0, "shard_timeout": None}
        tarmac.download(source, f"{tmp_path}/out/", concurrency=12, hosts=hosts(*names), **options)
    assert statuses(tmp_path / "out") == ["success"] * count


@pytest.mark.parametrize("kind", ["places", "memory"])
def test_slow_answers_leave_their_places_to_others(kind, tmp_path, monkeypatch):
    """More of them than there are places, or one that fills the memory, would end only when all others were sent."""
    monkeypatch.setattr(crawl, "_SLOW", 0.3)
    if kind == "memory":
        monkeypatch.setattr(crawl, "HELD", 1 << 16)
    names = [f"h{number}.test" for number in range(50)]
    count, places, every = (400, 10, 10) if kind == "places" else (400, 100, 50)
    slow = {str(number) for number in range(100, count, every)}
    released = asyncio.Event()
    served: set[str] = set()

    def script(request):
        name = request.path.removeprefix("/")
        if not name.isdigit():
            return NOT_HERE
        if name in slow and kind == "places":
            return Answer(picture(1), waits=released)
        if name in slow and not released.is_set():
            return Answer(picture(1, format="PNG") + bytes(1 << 17), way="hang")
        served.add(name)
        if len(served) == count - len(slow):
            released.set()
        return Answer(picture(int(name) % 50))

    with serving(script) as web:
        source = table(tmp_path / "t.parquet", [web.url(names[n % 50], f"/{n}") for n in range(count)])
        options = QUICK | {"timeout": 10_000.0, "shard_timeout": 60.0, "max_failed": 1.0}
        tarmac.download(source, f"{tmp_path}/out/", concurrency=places, hosts=hosts(*names), **options)
        assert released.is_set()
    assert statuses(tmp_path / "out") == ["success"] * count
    first = pq.read_table(tmp_path / "out" / "00000.parquet")
    assert first["status"].to_pylist().count("success") >= count - len(slow)
    assert len(web.pictures()) == count
    assert web.pictures().total() <= count + len(slow)


def test_a_shard_ends_at_its_deadline_whatever_its_hosts_do(tmp_path):
    """Two rows would be answered after hours; they get a status, and are fetched when the host is back."""
    names, back = [f"h{number}.test" for number in range(12)], []

    def script(request):
        number = request.path.removeprefix("/")
        if not number.isdigit():
            return NOT_HERE
        return Answer(picture(int(number)), way="whole" if back or int(number) % 6 else "stall")

    with serving(script) as web:
        source = table(tmp_path / "t.parquet", [web.url(names[n], f"/{n}") for n in range(12)])
        options = QUICK | {"timeout": 10_000.0, "hosts": hosts(*names), "final_retry": False}
        tarmac.download(source, f"{tmp_path}/out/", shard_timeout=1.0, max_failed=1.0, **options)
        rows = lines(tmp_path / "out")
        back.append(True)
        tarmac.download(source, f"{tmp_path}/out/", retry="transient", **options)
    assert [rows[number]["status"] for number in (0, 6)] == ["deadline"] * 2
    assert "time for the shard" in rows[0]["error_message"]
    assert {row["status"] for row in rows} <= {"deadline", "success"}
    assert statuses(tmp_path / "out") == ["success"] * 12


def test_the_last_rows_of_a_shard_are_left_to_the_end_of_the_run(tmp_path):
    """The answer to the first row begins only when the last shard is done."""
    released = asyncio.Event()

    def script(request):
        name = request.path.removeprefix("/")
        if name == "last":
            released.set()
        if not name.isdigit() and name != "last":
            return NOT_HERE
        return Answer(picture(1), waits=released if name == "0" else None)

    with serving(script) as web:
        links = [web.url(f"h{n % 50}.test", f"/{n}") for n in range(199)]
        source = table(tmp_path / "t.parquet", [*links, web.url("last.test", "/last")])
        names = hosts("last.test", *(f"h{number}.test" for number in range(50)))
        options = QUICK | {"timeout": 10_000.0, "shard_timeout": None, "rows_per_shard": 100}
        report = tarmac.download(source, f"{tmp_path}/out/", hosts=names, **options)
    assert report.written == 200
    assert counted(tmp_path / "out") == {"success": 200}
    assert len(list((tmp_path / "out").glob("*.tar"))) == 3
    assert web.count("/0", "h0.test") == 2


def test_endless_answers_are_cut_off(tmp_path):
    """A picture that never ends is cut off at the limit, and anything else at once."""

    def script(request):
        number = request.path.removeprefix("/")
        if not number.isdigit():
            return NOT_HERE
        return Answer(picture(1) if int(number) % 2 else b"", way="endless")

    with serving(script) as web:
        source = table(tmp_path / "t.parquet", [web.url(f"h{n}.test", f"/{n}") for n in range(20)])
        names = hosts(*(f"h{number}.test" for number in range(20)))
        options = QUICK | {"max_file_bytes": 1_000_000, "timeout": 10_000.0, "max_failed": 1.0}
        tarmac.download(source, f"{tmp_path}/out/", hosts=names, **options)
    assert statuses(tmp_path / "out") == ["not_image", "too_large"] * 10
    assert len(web.sent) == 20
    assert max(web.sent.values()) < 32 << 20  # what fits into the buffers of sockets


def test_endless_pictures_are_cut_off_when_their_pixels_do_not_explain_them(tmp_path):
    """What follows a picture is read to its end only if the server says where that is."""
    announced = picture(1) + bytes(5 << 20)

    def script(request):
        kinds = {"/endless": Answer(picture(1), way="endless"), "/announced": Answer(announced)}
        return kinds.get(request.path, NOT_HERE)

    with serving(script) as web:
        links = [web.url(host, f"/{kind}") for host, kind in (("a.test", "endless"), ("b.test", "announced"))]
        source = table(tmp_path / "t.parquet", links)
        options = QUICK | {"max_file_bytes": 1 << 30, "timeout": 10_000.0, "hosts": hosts("a.test", "b.test")}
        tarmac.download(source, f"{tmp_path}/out/", **options)
    endless, complete = lines(tmp_path / "out")
    assert (endless["status"], complete["status"]) == ("too_large", "success")
    assert complete["bytes"] == len(announced)
    assert web.sent["/endless"] < 64 << 20  # what fits into the buffers of sockets, and not a gigabyte
