"""Downloading a list in which one URL in a hundred never ends, beside the same list without them.

By turns, these URLs send a byte now and then, something else than a picture as fast as they can, and zeros behind a
picture as fast as they can. Each side downloads two shards, and the time from the end of the first to the end of the
second counts: the start is left out, and the end of the run, which tries the slow ones again.

In one case the server answers at once, so that preparing the pictures takes the time; in the other one after a while,
so that waiting does, and each of the few places for requests counts.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.cases.copies import views
from bench.measure import ROOT
from bench.registry import Done, Site, Work, case

HOSTS, PICTURES = 200, 24
CASES = {
    "download with 1 % endless URLs": (10_000, 0.0, 128),
    "download with 1 % endless URLs, of hosts that take 0.2 s": (4_000, 0.2, 48),
}
"""Rows, seconds before an answer begins, and requests at a time."""
EVERY, KINDS = 100, ("slow", "stream", "picture")
KEPT = 0.9
"""The least part of the throughput that remains."""


def serve(port, delay: float) -> None:
    """Run the scripted web of the tests, in a process of its own."""
    sys.path.insert(0, str(ROOT / "tests"))
    from harness.web import NOT_HERE, Answer, serving

    pictures = list(views(PICTURES))

    def script(request):
        kind, _, number = request.path[1:].partition("/")
        if kind not in ("good", *KINDS):
            return NOT_HERE
        body = pictures[int(number) % PICTURES]
        return {
            "good": Answer(body, delay=delay),
            "slow": Answer(body + bytes(1 << 20), way="drip"),
            "stream": Answer(way="endless"),
            "picture": Answer(body, way="endless"),
        }[kind]

    with serving(script) as web:
        port.send(web.port)
        with contextlib.suppress(EOFError):
            port.recv()  # until the other end is closed


def links(port: int, rows: int, *, endless: bool, path: Path) -> Path:
    """Write a table of links, and return its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def kind(number: int) -> str:
        return KINDS[number // EVERY % 3] if endless and number % EVERY == 5 else "good"

    # Hosts have both kinds: one that has nothing but endless answers would be left alone.
    urls = [f"http://h{(n + n // EVERY) % HOSTS}.test:{port}/{kind(n)}/{n}" for n in range(rows)]
    pq.write_table(pa.table({"url": urls}), path)
    return path


def command(table: Path, output: Path, rows: int, places: int) -> list[str]:
    """Return the command that downloads a table into shards with a number of rows."""
    names = ",".join(f"h{number}.test=127.0.0.1" for number in range(HOSTS))
    line = [sys.executable, "-m", "tarmac", "download", str(table), "-o", f"{output}/", "--size", "256"]
    line += ["--rows-per-shard", str(rows), "--concurrency", str(places), "--url-retries", "0"]
    line += ["--ignore", "robots,content-signal,tdmrep"]
    return [*line, "--allow-networks", "127.0.0.0/8", "--hosts", names]


def second_shard(output: Path, line: list[str]) -> float:
    """Download until the second shard is complete; return the seconds that it took after the first."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(line, stdout=quiet, stderr=quiet) as process:
        times = []
        for number in range(2):
            while not Path(output, f"{number:05d}.tar").exists():
                if process.poll() is not None:
                    raise RuntimeError(f"the download ended with status {process.returncode}")
                time.sleep(0.005)
            times.append(time.perf_counter())
        process.kill()
    return times[1] - times[0]


def downloading(site: Site, side: str, most: int, delay: float, places: int) -> Work:
    rows = min(most, site.small)

    def measured() -> Done:
        here, there = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(there, delay), daemon=True)
        server.start()
        try:
            with tempfile.TemporaryDirectory(dir=site.data) as home:
                endless, output = side == "tarmac", Path(home, "out")
                table = links(here.recv(), 2 * rows, endless=endless, path=Path(home, "links.parquet"))
                seconds = second_shard(output, command(table, output, rows, places))
        finally:
            server.kill()
            server.join()
        return Done(rows, seconds)

    return measured


def define(name: str, rows: int, delay: float, places: int) -> None:
    @case(name, sides=("tarmac", "without"), ratio=KEPT)
    def setup(site: Site, side: str) -> Work:
        return downloading(site, side, rows, delay, places)


for _name, _values in CASES.items():
    define(_name, *_values)
