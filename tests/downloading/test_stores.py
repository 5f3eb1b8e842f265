"""Downloads into an object store, from tables in it: the same files as on disk, also after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import tarmac
from downloading.links import QUICK, table
from harness.clusters import import_path
from harness.servers import required, seaweed_s3
from harness.waiting import until
from harness.web import NOT_HERE, Answer, hosts, picture, serving
from tarmac.errors import UsageError
from tarmac.storage import StorageOptions, list_objects, read_all, write_all

pytestmark = [pytest.mark.processes, pytest.mark.long]
ROWS, BLOCK, AT_ONCE = 200, 100, 4
NAMES = [f"h{number}.test" for number in range(10)]
OPTIONS = QUICK | {
    "rows_per_shard": BLOCK,
    "size": 24,
    "concurrency": AT_ONCE,
    "hosts": hosts(*NAMES),
    "ignore": ["robots", "content-signal", "tdmrep"],
    "final_retry": False,  # which would leave rows that are slow on a busy machine to another shard
}
PROGRAM = """
import sys, tarmac
from tarmac.downloading import spool
spool.UPLOAD_BYTES = 1
tarmac.download(sys.argv[1], sys.argv[2], **{options!r})
"""


@pytest.fixture(scope="module")
def store():
    with required(seaweed_s3()) as server:
        server.make_bucket("links")
        yield server


@pytest.fixture
def web():
    def script(request):
        name = request.path.removeprefix("/")
        if not name.isdigit() or int(name) % 50 == 7:
            return NOT_HERE
        return Answer(picture(int(name), 60, 40), delay=0.01)

    with serving(script) as server:
        yield server


def source(web, folder):
    return table(folder / "t.parquet", [web.url(NAMES[n % 10], f"/{n}") for n in range(ROWS)])


def objects(url, storage):
    """Return the shards and the manifest below a URL, with the URL left out of them."""
    names = [name for name, _ in list_objects(url, storage) if name.endswith((".tar", ".json"))]
    listed = {name.removeprefix(url): read_all(name, storage) for name in names if "/.tarmac/" not in name}
    return {name: data.replace(url.encode(), b"") for name, data in listed.items()}


def local(folder):
    paths = [path for path in folder.iterdir() if path.suffix in (".tar", ".json")]
    return {path.name: path.read_bytes().replace(f"{folder}/".encode(), b"") for path in paths}


def test_a_table_and_an_output_in_a_bucket(store, web, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    storage = StorageOptions(config=store.config())
    links = source(web, tmp_path)
    write_all("s3://links/in/t.parquet", Path(links).read_bytes(), storage)
    tarmac.download(links, f"{tmp_path}/out/", **OPTIONS)
    page = "s3://links/a/page.html"
    report = tarmac.download(
        "s3://links/in/t.parquet", "s3://links/a/", storage=storage, html=page, **OPTIONS
    )
    assert (report.read, report.written) == (ROWS, ROWS - 4)
    assert b"<svg" in read_all(page, storage)
    assert not any((tmp_path / "here").iterdir())
    assert objects("s3://links/a/", storage) == local(tmp_path / "out")
    before = len(web.requests)
    again = tarmac.download("s3://links/in/t.parquet", "s3://links/a/", storage=storage, **OPTIONS)
    assert (again.kept, len(web.requests)) == (2, before)
    late = tarmac.download(
        "s3://links/in/t.parquet", "s3://links/a/", storage=storage, retry="failed", **OPTIONS
    )
    assert (late.units, len(web.requests)) == (3, before + 4)
    assert len(tarmac.Dataset("s3://links/a/manifest.json", storage=storage)) == ROWS - 4


def test_tasks_and_engines(store, web, tmp_path):
    """Tasks copy a remote table for themselves; workers of an engine would not find a copy."""
    storage = StorageOptions(config=store.config())
    links = source(web, tmp_path)
    write_all("s3://links/in/t.parquet", Path(links).read_bytes(), storage)
    tarmac.download(links, f"{tmp_path}/out/", **OPTIONS)
    options = OPTIONS | {"storage": storage}
    for number in range(2):
        tarmac.download("s3://links/in/t.parquet", "s3://links/tasks/", task=(number, 2), **options)
    assert objects("s3://links/tasks/", storage) == local(tmp_path / "out")
    with pytest.raises(UsageError, match="would not find a copy"):
        tarmac.download("s3://links/in/t.parquet", "s3://links/dask/", engine="dask", **options)
    tarmac.download(links, "s3://links/dask/", engine="dask", **options)
    assert objects("s3://links/dask/", storage) == local(tmp_path / "out")


def test_a_killed_download_continues(store, web, tmp_path):
    storage = StorageOptions(config=store.config())
    links = source(web, tmp_path)
    tarmac.download(links, f"{tmp_path}/out/", **OPTIONS)
    environment = os.environ | store.env() | {"PYTHONPATH": import_path(str(Path(__file__).parents[1]))}
    before, kills = len(web.requests), 3
    for number in range(kills):
        command = [sys.executable, "-c", PROGRAM.format(options=OPTIONS), links, "s3://links/killed/"]
        with subprocess.Popen(command, env=environment) as process:
            goal = len(web.requests) + 50 + number
            assert until(lambda: len(web.requests) >= goal)  # noqa: B023
            process.send_signal(signal.SIGKILL)
    report = tarmac.download(links, "s3://links/killed/", storage=storage, **OPTIONS)
    assert report.written == ROWS - 4
    assert objects("s3://links/killed/", storage) == local(tmp_path / "out")
    asked = Counter(web.requests[before:])
    assert len(asked) == ROWS
    # Besides what was in flight, what was answered and not uploaded yet is asked for again.
    assert asked.total() <= ROWS + kills * 2 * AT_ONCE
    left = [url for url, _ in list_objects("s3://links/killed/", storage) if url.endswith(".spool")]
    assert not left
