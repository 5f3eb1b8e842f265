"""Downloads that are killed and continued: the bytes are those of an undisturbed run, and little is asked for twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import tarmac
from downloading.links import QUICK, outputs, patiently, statuses, table, timeless
from harness import rounds
from harness.clusters import import_path
from harness.crash import Forked
from harness.waiting import FOREVER, until
from harness.web import NOT_HERE, Answer, hosts, picture, serving

pytestmark = [pytest.mark.processes, pytest.mark.long]
ROWS, BLOCK, AT_ONCE, WORKERS = 400, 100, 8, 2
NAMES = [f"h{number}.test" for number in range(20)]
OPTIONS = QUICK | {
    "rows_per_shard": BLOCK,
    "size": 24,
    "concurrency": AT_ONCE,
    "hosts": hosts(*NAMES),
    "ignore": ["robots", "content-signal", "tdmrep"],
    "final_retry": False,  # which would leave rows that are slow on a busy machine to another shard
}
ENGINES = {
    "alone": {},
    "processes": {"jobs": WORKERS},
    "first task": {"task": "0/2"},
    "second task": {"task": "1/2"},
    "dask": {"engine": "dask", "jobs": WORKERS},
}
PROGRAM = "import sys, tarmac\ntarmac.download(sys.argv[1], sys.argv[2], **{options!r})"


@pytest.fixture
def web():
    def script(request):
        name = request.path.removeprefix("/")
        if not name.isdigit() or int(name) % 50 == 7:
            return NOT_HERE
        return Answer(picture(int(name), 60, 40), delay=0.005)

    with serving(script) as server:
        yield server


def source(web, folder):
    return table(folder / "t.parquet", [web.url(NAMES[n % 20], f"/{n}") for n in range(ROWS)])


def start(engine, links, output):
    """Start a download in a process group of its own, and return its number."""
    options = OPTIONS | ENGINES[engine]
    if engine == "dask":  # its threads do not survive a fork
        command = [sys.executable, "-c", PROGRAM.format(options=options), links, output]
        environment = os.environ | {"PYTHONPATH": import_path(str(Path(__file__).parents[1]))}
        return os.posix_spawn(sys.executable, command, environment, setpgroup=0)
    return Forked(lambda: tarmac.download(links, output, **options)).start()


def killed(process, web, requests, seconds):
    """Kill a process and its children after a number of requests and some time; return whether it still ran."""
    status = []

    def ended():
        if not status and (waited := os.waitpid(process, os.WNOHANG))[0]:
            status.append(waited[1])
        return status

    until(lambda: ended() or len(web.requests) >= requests, pause=0.001)
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    if not ended():
        status.append(os.waitpid(process, 0)[1])
    assert status[0] in (0, signal.SIGKILL)
    return status[0] == signal.SIGKILL


def test_kills_at_random_moments_and_changes_of_the_engine(web, tmp_path):
    """Each job is killed a few times, runs every time on another engine, and is completed by one that is not killed."""
    links, choice = source(web, tmp_path), random.Random(3)
    tarmac.download(links, f"{tmp_path}/quiet/", **OPTIONS)
    quiet, lines = outputs(tmp_path / "quiet"), timeless(tmp_path / "quiet")
    kills = again = jobs = 0
    engines = list(ENGINES)
    while kills < rounds(50):
        output, before, struck = tmp_path / f"out-{jobs}", len(web.requests), 0
        for turn in range(5):
            requests = len(web.requests) + choice.randrange(1, ROWS // 3)
            process = start(engines[(jobs + turn) % len(engines)], links, f"{output}/")
            if not killed(process, web, requests, choice.uniform(0, 0.05)):
                break
            struck += 1
            written = outputs(output) if output.exists() else {}
            shards = {name: data for name, data in written.items() if name.endswith(".tar")}
            assert shards == {name: quiet[name] for name in shards}
        tarmac.download(links, f"{output}/", **OPTIONS)
        assert outputs(output) == quiet
        assert timeless(output) == lines
        asked = Counter(web.requests[before:])
        assert len(asked) == ROWS
        assert asked.total() <= ROWS + struck * WORKERS * AT_ONCE
        kills, again, jobs = kills + struck, again + asked.total() - ROWS, jobs + 1
    print(f"{kills} kills of {jobs} downloads of {ROWS} rows: {again} requests more than rows")


def test_kills_while_late_rows_are_fetched(tmp_path, monkeypatch):
    """A third of the rows fails until all shards are written; the end of the run, which fetches them, is killed."""
    patiently(monkeypatch)
    late, output, choice = range(0, ROWS, 3), [tmp_path / "quiet"], random.Random(5)

    def script(request):
        number = int(request.path.removeprefix("/"))
        ready = all((output[0] / f"{shard:05d}.parquet").exists() for shard in range(ROWS // BLOCK))
        return Answer(picture(number, 60, 40)) if ready or number not in late else Answer(status=503)

    with serving(script) as server:
        links = source(server, tmp_path)
        options = OPTIONS | {"final_retry": True, "url_retries": 0, "timeout": float(FOREVER)}
        tarmac.download(links, f"{output[0]}/", **options)
        quiet, lines = outputs(output[0]), timeless(output[0])
        assert len([name for name in quiet if name.endswith(".tar")]) == ROWS // BLOCK + -(
            -len(late) // BLOCK
        )
        kills = 0
        while kills < rounds(6):
            output[0], before = tmp_path / f"out-{kills}", len(server.requests)
            for goal in (
                ROWS + choice.randrange(1, len(late) // 2),
                ROWS + choice.randrange(len(late) // 2, len(late)),
            ):
                process = Forked(lambda: tarmac.download(links, f"{output[0]}/", **options)).start()
                kills += killed(process, server, before + goal, choice.uniform(0, 0.02))
            report = tarmac.download(links, f"{output[0]}/", **options)
            assert (report.written, report.failed) == (ROWS, 0)
            assert outputs(output[0]) == quiet
            assert timeless(output[0]) == lines
            assert len(server.requests) - before <= ROWS + len(late) + 2 * AT_ONCE
    print(f"{kills} kills")


def test_another_engine_completes_the_download(web, tmp_path):
    links = source(web, tmp_path)
    tarmac.download(links, f"{tmp_path}/quiet/", **OPTIONS)
    process = start("first task", links, f"{tmp_path}/out/")
    assert killed(process, web, len(web.requests) + ROWS // 2, 0.0)
    report = tarmac.download(links, f"{tmp_path}/out/", jobs=2, **OPTIONS)
    assert report.written == ROWS - 8
    assert outputs(tmp_path / "out") == outputs(tmp_path / "quiet")
    assert statuses(tmp_path / "out") == statuses(tmp_path / "quiet")


def test_tasks_without_a_driver_share_a_download(web, tmp_path):
    links = source(web, tmp_path)
    tarmac.download(links, f"{tmp_path}/quiet/", **OPTIONS)
    for number in range(2):
        tarmac.download(links, f"{tmp_path}/out/", task=(number, 2), **OPTIONS)
    assert outputs(tmp_path / "out") == outputs(tmp_path / "quiet")
