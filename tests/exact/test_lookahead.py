from __future__ import annotations

import http.server
import os
import threading
import warnings
from collections import Counter
from functools import partial

import pytest

import tarmac
from exact.conftest import write_shards
from harness.folder import folder
from harness.servers import EndingServer
from harness.waiting import until
from tarmac.errors import CacheFull
from tarmac.storage import Cache


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a directory and counts requests."""

    fetched: Counter[str] = Counter()
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.fetched[self.path.rpartition("/")[2]] += 1
        super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def site(tmp_path):
    """Serve twelve shards of forty samples over HTTP."""
    folder = tmp_path / "site"
    folder.mkdir()
    paths = write_shards(folder, [40] * 12)
    Quiet.fetched = Counter()
    server = EndingServer(partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    base = f"http://127.0.0.1:{server.server_port}"
    yield [f"{base}/{path.rpartition('/')[2]}" for path in paths], folder
    server.shutdown()
    thread.join()
    server.server_close()


def epoch(loader):
    return sorted(key for batch in loader for key in batch["__key__"])


@pytest.mark.parametrize("processes", [0, 1])
def test_each_shard_is_fetched_once_with_a_cache_for_a_third_of_them(site, tmp_path, processes):
    urls, folder = site
    size = (folder / "s-000.tar").stat().st_size
    cache = Cache(tmp_path / "cache", max_bytes=4 * size)
    dataset = tarmac.Dataset(urls, cache=cache)
    options = {"streams": 1, "window": 20, "threads": 2, "tail": "short"}
    with tarmac.Loader(dataset, 8, processes=processes, **options) as loader:
        Quiet.fetched.clear()
        assert epoch(loader) == [f"s{number:05d}" for number in range(480)]
        shards = {name: count for name, count in Quiet.fetched.items() if name.endswith(".tar")}
        assert shards == {f"s-{number:03d}.tar": 1 for number in range(12)}
    held = sum(path.stat().st_size for path in (tmp_path / "cache").glob("*.tar"))
    assert held <= 4 * size
    dataset.close()


@pytest.mark.parametrize("processes", [0, pytest.param(1, marks=pytest.mark.processes)])
def test_a_cache_keeps_its_limit_if_all_shards_are_in_use(tmp_path, processes):
    (tmp_path / "served").mkdir()
    paths = write_shards(tmp_path / "served", [40] * 12)
    local = tarmac.Loader(tarmac.Dataset(paths), 8, tail="short")
    cache = Cache(tmp_path / "cache", max_bytes=4 * os.path.getsize(paths[0]))
    with folder(tmp_path / "served") as url, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = tarmac.Dataset([f"{url}/{os.path.basename(path)}" for path in paths], cache=cache)
        with tarmac.Loader(dataset, 8, threads=2, tail="short", processes=processes) as loader:
            for batch, expected in zip(loader, local, strict=True):
                assert batch["__key__"] == expected["__key__"]
                assert batch["npy"] == expected["npy"]
                held = sum(path.stat().st_size for path in (tmp_path / "cache").glob("*.tar"))
                assert held <= cache.max_bytes
        dataset.close()
    if not processes:  # a worker process prints its own
        assert [warning.category for warning in caught] == [CacheFull]


def test_shards_are_fetched_before_they_are_needed(site, tmp_path):
    urls, _ = site
    dataset = tarmac.Dataset(urls, cache=Cache(tmp_path / "cache"))
    Quiet.fetched.clear()
    loader = tarmac.Loader(dataset, 8, streams=1, window=20, threads=0)
    batches = iter(loader)
    next(batches)
    # One batch needs one or two shards; the next 32 batches need seven.
    assert until(lambda: sum(name.endswith(".tar") for name in list(Quiet.fetched)) >= 6)
    batches.close()
    dataset.close()


def test_a_missing_shard_is_an_error_where_it_is_needed(site, tmp_path):
    urls, folder = site
    dataset = tarmac.Dataset(urls, cache=Cache(tmp_path / "cache"))
    (folder / "s-007.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"s-007\.tar"):
        epoch(tarmac.Loader(dataset, 8, streams=1, window=20, threads=1))
    dataset.close()


def test_local_shards_are_not_cached(dataset, tmp_path):
    cached = tarmac.Dataset(dataset._parts[0].shards.manifest, cache=Cache(tmp_path / "cache"))
    assert len(epoch(tarmac.Loader(cached, 7, tail="short"))) == 203
    assert not (tmp_path / "cache").exists()
    cached.close()
