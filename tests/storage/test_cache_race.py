"""Eight processes with evictions and kill -9 share one cache: no wrong byte, no leftovers."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import time
import traceback
from pathlib import Path

import pytest

from harness import rounds
from storage.caches import shard_bytes
from tarmac.storage import Cache, FileStore, Source, StorageOptions, register_scheme, schemes

FAST = StorageOptions(backoff=0.001, max_backoff=0.005, retries=2, idle_timeout=60)


def read(cache: Cache, url: str, options: StorageOptions = FAST) -> bytes:
    with cache.open_read(url, options) as source:
        return b"".join(iter(lambda: source.read(1 << 16), b""))


def total(cache: Cache) -> int:
    return sum(path.stat().st_size for path in Path(cache.directory).iterdir() if path.is_file())


def entries(cache: Cache) -> set[str]:
    return {path.name for path in Path(cache.directory).iterdir() if path.is_file()}


def nothing_left_over(cache: Cache) -> None:
    root = Path(cache.directory)
    assert os.listdir(root / ".tarmac/parts") == []
    assert set(os.listdir(root / ".tarmac/notes")) == entries(cache)
    assert set(os.listdir(root / ".tarmac/locks")) <= {"budget"}


class Counted(Source):
    """A slow source that appends to a file each time it is opened."""

    def __init__(self, url: str, ledger: Path, size: int) -> None:
        self._data = io.BytesIO(shard_bytes(url, size))
        with ledger.open("a") as file:
            file.write("x")

    def read(self, size: int, /) -> bytes:
        time.sleep(0.0003)
        return self._data.read(min(size, 8192))


def race_worker(root: Path, seed: int, shards: int, size: int, budget: int, ledger: Path) -> None:
    register_scheme("race", FileStore(lambda url: Counted(url, ledger, size)))
    rng = random.Random(seed)
    cache = Cache(root, max_bytes=budget)
    for _ in range(60):
        url = f"race://host/{rng.randrange(shards)}.tar"
        with cache.open_read(url) as source:
            data = source.read(rng.choice((100, 1 << 20)))
            data += b"".join(iter(lambda s=source: s.read(1 << 20), b""))
        if data != shard_bytes(url, size):
            os._exit(77)
        if rng.random() < 0.1:
            cache.clean()
        if rng.random() < 0.2:
            cache = Cache(root, max_bytes=budget)  # verifies the entries again
    os._exit(0)


@pytest.mark.heavy
def test_eight_processes_with_evictions_and_kills(tmp_path, monkeypatch):
    monkeypatch.setattr(schemes, "_registered", {})
    shards, size, kills = 12, 40_000, 0
    for round_ in range(rounds(6)):
        root, ledger = tmp_path / f"c{round_}", tmp_path / f"ledger{round_}"
        ledger.touch()
        budget = (5 if round_ % 2 else 100) * size
        rng = random.Random(round_)
        workers: dict[int, int] = {}
        started = killed = 0

        def start(seed: int, root=root, budget=budget, ledger=ledger, workers=workers) -> None:
            pid = os.fork()
            if pid == 0:
                try:
                    race_worker(root, seed, shards, size, budget, ledger)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(78)
            workers[pid] = seed

        for started in range(8):
            start(round_ * 1000 + started)
        while workers:
            time.sleep(rng.uniform(0, 0.02))
            if rng.random() < 0.4 and killed < 25:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(list(workers)), signal.SIGKILL)
                    killed += 1
            while workers and (exited := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = exited
                seed = workers.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                assert code in (0, -signal.SIGKILL), f"seed {seed}: worker ended with {code}"
                if code and started < 30:
                    started += 1
                    start(round_ * 1000 + started)
        kills += killed
        cache = Cache(root, max_bytes=budget)
        cache.clean()
        nothing_left_over(cache)
        assert total(cache) <= budget
        downloads = len(ledger.read_text())
        if budget >= shards * size:
            assert downloads <= shards + killed
        register_scheme("race", FileStore(lambda url, ledger=ledger: Counted(url, ledger, size)))
        for number in range(shards):
            url = f"race://host/{number}.tar"
            assert read(Cache(root, max_bytes=budget), url) == shard_bytes(url, size)
    assert kills >= rounds(6) * 10
