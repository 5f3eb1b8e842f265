"""Many rows of many hosts, of which some fail, stall or never end: every row has one status, in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tarmac
from downloading.links import QUICK, counted, lines, patiently, statuses, table
from harness import rounds
from harness.clusters import import_path
from harness.memory import peak, reset_peak
from harness.waiting import until
from harness.web import NOT_HERE, Answer, hosts, picture, serving
from tarmac.downloading.rows import Block, Segment, late_blocks
from tarmac.downloading.status import failed_rows
from tarmac.storage.types import DEFAULT_STORAGE

pytestmark = [pytest.mark.processes, pytest.mark.heavy]
HOSTS = [f"h{number}.test" for number in range(200)]
KINDS = {
    "good": "success", "moved": "success", "gone": "http", "page": "not_image", "broken": "bad_image",
    "cut": "truncated", "loop": "redirects", "noai": "opted_out", "endless": "too_large", "error": "http",
    "busy": "success",
}  # fmt: skip
SHARES = {
    "good": 69,
    "moved": 8,
    "gone": 12,
    "page": 3,
    "broken": 2,
    "cut": 1,
    "loop": 1,
    "noai": 1,
    "endless": 1,
    "error": 1,
    "busy": 1,
}


def script(request):
    kind, _, name = request.path[1:].partition("/")
    if request.path == "/robots.txt":
        return Answer(b"User-agent: *\nAllow: /")
    number = int(name or 0) % 50
    if kind == "moved":
        return Answer(status=302, headers={"Location": f"/good/{name}"})
    if kind == "loop":
        return Answer(status=302, headers={"Location": request.path})
    if kind == "busy":
        wait = Answer(status=(429, 503)[number % 2], headers={"Retry-After": "1"})
        return Answer(picture(number)) if request.number else wait
    if kind == "noai":
        return Answer(picture(number), headers={"X-Robots-Tag": "noai"})
    return {
        "good": Answer(picture(number)),
        "page": Answer(b"<html>" * 100),
        "broken": Answer(picture(number)[:-300]),
        "cut": Answer(picture(number), way="cut"),
        "endless": Answer(picture(number), way="endless"),
        "error": Answer(status=500),
    }.get(kind, NOT_HERE)


def every_status(folder):
    return [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]


def test_every_row_has_one_status_and_totals_are_those_of_the_server(tmp_path, monkeypatch):
    patiently(monkeypatch)
    count = rounds(5) * 2000 if rounds(1) == 1 else 100_000
    kinds = [kind for kind, share in SHARES.items() for _ in range(share)]
    with serving(script) as web:
        chosen = [kinds[(number * 37) % 100] for number in range(count)]
        # Hosts that are busy have one row: nothing else is on its way to them when they say so.
        names = [
            f"b{n}.test" if kind == "busy" else HOSTS[(n * 13 + n // 100) % 200]
            for n, kind in enumerate(chosen)
        ]
        links = [web.url(names[n], f"/{kind}/{n}") for n, kind in enumerate(chosen)]
        source = table(tmp_path / "t.parquet", links)
        report = tarmac.download(
            source,
            f"{tmp_path}/out/",
            rows_per_shard=2500,
            size=32,
            hosts=hosts(*names),
            max_file_bytes=100_000,
            url_retries=1,
            **QUICK | {"max_wait": 5.0, "timeout": 20.0},
        )
        rows = lines(tmp_path / "out")
        assert len(rows) == count
        wrong = [
            (row["url"], row["status"])
            for row, kind in zip(rows, chosen, strict=True)
            if row["status"] != KINDS[kind]
        ]
        # A host that failed often may have been left alone at last: its rows have a status that says so.
        assert {status for _, status in wrong} <= {"host_down"}
        assert len(wrong) < 0.03 * count
        assert report.statuses == dict(counted(tmp_path / "out"))
        assert report.read == count == report.written + report.failed + report.dropped
        asked = Counter(path.split("/")[1] for _, path in web.requests)
        assert asked["robots.txt"] == len({host for host, _ in web.requests})
        assert asked["good"] == chosen.count("good") + chosen.count("moved")
        assert asked["busy"] == 2 * chosen.count("busy")
        assert max(web.most.values()) <= 8
        assert not web.early
        print(f"{count} rows, {len(web.requests)} requests, {dict(counted(tmp_path / 'out'))}")
        # A row may have a line of each attempt, and one that is given up does not reach the server.
        requests = sum(sum(each["requests"].to_pylist()) for each in every_status(tmp_path / "out"))
        given_up = sum(
            each["status"].to_pylist().count("deadline") for each in every_status(tmp_path / "out")
        )
        assert 0 <= requests - web.pictures().total() <= given_up
        assert len(tarmac.Dataset(str(tmp_path / "out" / "manifest.json"))) == report.written


def test_hosts_that_fail_at_first_are_fetched_in_the_same_run(tmp_path):
    """A fifth of the hosts stalls, answers 503 or 429, or breaks off, until others have answered for a while."""
    count = rounds(2) * 1000
    ill = {host: index for index, host in enumerate(HOSTS[::5])}

    def failing(request):
        if request.host in ill and len(web.requests) < 0.6 * count:
            return [
                Answer(way="stall"),
                Answer(status=503),
                Answer(status=429, headers={"Retry-After": "1"}),
                Answer(way="reset"),
                Answer(picture(1), way="cut"),
            ][ill[request.host] % 5]
        return NOT_HERE if request.path == "/robots.txt" else Answer(picture(int(request.path[1:]) % 50))

    with serving(failing) as web:
        source = table(tmp_path / "t.parquet", [web.url(HOSTS[n % 200], f"/{n}") for n in range(count)])
        report = tarmac.download(
            source, f"{tmp_path}/out/", rows_per_shard=500, hosts=hosts(*HOSTS), **QUICK | {"max_wait": 60.0}
        )
    print(f"{report.written} of {count} rows were fetched")
    assert report.written >= 0.999 * count
    assert Counter(statuses(tmp_path / "out"))["success"] == report.written


PROGRAM = """
import os, sys, threading
import tarmac
from harness.memory import peak

def report():
    sys.stdin.readline()
    print(peak(), flush=True)
    os._exit(0)

threading.Thread(target=report).start()
hosts = {f"h{number}.test": "127.0.0.1" for number in range(200)}
ignored = ["robots", "content-signal", "tdmrep"]
tarmac.download(sys.argv[1], sys.argv[2], rows_per_shard=2000, size=32, hosts=hosts, ignore=ignored, max_failed=1.0,
                allow_networks=["127.0.0.0/8"])
"""


def test_memory_does_not_grow_with_the_table_or_the_pictures(tmp_path):
    """A table of ten million rows, of which a task fetches a few blocks; and pictures of six megabytes."""
    large = picture(1) + bytes(6_000_000)

    def with_large_ones(request):
        return Answer(large) if request.path.startswith("/large/") else script(request)

    with serving(with_large_ones) as web:
        schema = pa.schema([("url", pa.string()), ("caption", pa.string())])
        with pq.ParquetWriter(tmp_path / "t.parquet", schema) as writer:
            for part in range(100):
                numbers = range(part * 100_000, (part + 1) * 100_000)
                links = [web.url(HOSTS[number % 200], f"/gone/{number}") for number in numbers]
                writer.write_table(pa.table({"url": links, "caption": ["a caption"] * len(links)}, schema))
        few = table(tmp_path / "s.parquet", [web.url(HOSTS[n % 200], f"/good/{n}") for n in range(2000)])
        heavy = table(tmp_path / "h.parquet", [web.url(HOSTS[n % 200], f"/large/{n}") for n in range(400)])
        peaks = {}
        for name, path in (("many", str(tmp_path / "t.parquet")), ("few", few), ("heavy", heavy)):
            command = [sys.executable, "-c", PROGRAM, path, f"{tmp_path}/{name}/"]
            settings = os.environ | {"PYTHONPATH": import_path(str(Path(__file__).parents[1]))}
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings
            ) as process:
                blocks = 4 if name == "many" else 1
                assert until(lambda: len(list(tmp_path.glob(f"{name}/*.parquet"))) >= blocks)  # noqa: B023
                peaks[name] = int(process.communicate("\n")[0])
        print("peak memory:", {name: f"{size / 1e6:.0f} MB" for name, size in peaks.items()})
        assert max(peaks.values()) < 300e6


def test_memory_does_not_grow_with_the_rows_that_failed(tmp_path):
    """Half of three million rows are to be fetched again, in shards of 10,000."""
    size, files = 100_000, 30
    for number in range(files):
        rows = range(number * size, (number + 1) * size)
        status = ["http", "success"] * (size // 2)
        http = [503, 200] * (size // 2)
        pq.write_table(
            pa.table({"row": rows, "status": status, "http_status": http}), tmp_path / f"{number:02d}.parquet"
        )
    files_written = [str(path) for path in sorted(tmp_path.glob("*.parquet"))]
    blocks = [Block((Segment(0, (0,), size, number * size),)) for number in range(files)]
    before = reset_peak()
    rows, counts = failed_rows(files_written, ["transient"], size * files, DEFAULT_STORAGE)
    late = list(late_blocks(blocks, rows, 10_000))
    grown = peak() - before
    print(f"{len(rows)} failed rows: {grown / 1e6:.0f} MB more")
    assert counts == {"http": size * files // 2}
    assert sum(block.count for block in late) == len(rows) == size * files // 2
    assert list(late[0].wanted[:3]) == [0, 2, 4]
    assert grown < 100e6
