"""Filling, checking and emptying a cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.caches import FAST, Origin, entries, nothing_left_over_but_locks
from tarmac.errors import ConnectFailed, NotFound, UsageError
from tarmac.storage import Cache, FileStore, register_scheme, schemes
from tarmac.tools.cache import evict, verify, warm

URLS = [f"mem://host/{number}.tar?token=secret" for number in range(4)]


@pytest.fixture
def origin(monkeypatch):
    monkeypatch.setattr(schemes, "_registered", {})
    created = Origin(1000)
    register_scheme("mem", FileStore(created.open))
    return created


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def filled(cache, urls=URLS):
    report = warm(cache, urls, storage=FAST, progress=False)
    for number, url in enumerate(urls):  # one after the other
        os.utime(cache.path_of(url), (1000 + number, 1000 + number))
    return report


def test_warm(cache, origin, tmp_path):
    report = filled(cache, URLS[:3])
    assert (report.fetched, report.present, report.failed) == (URLS[:3], [], {})
    (tmp_path / "local.tar").write_bytes(b"")
    report = warm(cache, [*URLS, URLS[0], str(tmp_path / "local.tar")], storage=FAST, progress=False)
    assert (report.fetched, report.present) == (URLS[3:], URLS[:3])
    assert report.not_kept == [str(tmp_path / "local.tar")]
    assert sorted(origin.fetched) == URLS
    assert [cache.path_of(url).read_bytes() for url in URLS] == [origin.body(url) for url in URLS]
    nothing_left_over_but_locks(Path(cache.directory))


def test_a_damaged_entry_is_fetched_again(cache, origin):
    filled(cache)
    cache.path_of(URLS[1]).write_bytes(b"x" * 1000)
    report = warm(Cache(cache.directory), URLS, storage=FAST, progress=False)
    assert (report.fetched, len(report.present)) == ([URLS[1]], 3)
    assert verify(cache, progress=False).damaged == []


def test_shards_that_cannot_be_fetched_do_not_stop_the_others(cache, origin, monkeypatch):
    def failing(url):
        if "/1." in url:
            raise ConnectFailed("no answer.")
        if "/2." in url:
            raise NotFound("no such object.")
        return Origin.open(origin, url)

    register_scheme("mem", FileStore(failing))
    report = warm(cache, URLS, storage=FAST, progress=False)
    assert report.fetched == [URLS[0], URLS[3]]
    assert list(report.failed) == URLS[1:3]
    assert str(report) == "2 downloaded, 0 already cached, 0 not cached, 2 failed"
    assert report.to_dict()["errors"] == [line.removeprefix("FAILED ") for line in report.remarks]
    text = str(report.failed[URLS[1]])
    assert "no answer" in text
    assert "secret" not in text
    nothing_left_over_but_locks(Path(cache.directory))


def test_a_shard_that_is_larger_than_the_cache(tmp_path, origin):
    cache = Cache(tmp_path / "cache", max_bytes=999)
    report = warm(cache, URLS[:1], storage=FAST, progress=False)
    assert report.not_kept == URLS[:1]
    assert cache.entries() == []


def test_a_directory_that_cannot_be_used(tmp_path, origin):
    (tmp_path / "file").write_bytes(b"")
    report = warm(Cache(tmp_path / "file"), URLS[:1], storage=FAST, progress=False)
    assert "cache directory" in str(report.failed[URLS[0]])


def test_entries_show_no_secrets(cache, origin):
    assert cache.entries() == []
    filled(cache)
    results = cache.entries()
    assert [entry.url for entry in results] == [f"mem://host/{number}.tar?…" for number in range(4)]
    assert [(entry.size, entry.used) for entry in results] == [(1000, 1000.0 + number) for number in range(4)]
    assert cache.entry_of(URLS[2]) == results[2]
    assert cache.entry_of("mem://host/9.tar") is None
    (Path(cache.directory) / ".tarmac/notes" / results[0].name).write_text("{}")
    assert cache.entries()[0].url == ""


def test_verify(cache, origin):
    filled(cache)
    damaged, short = cache.path_of(URLS[0]), cache.path_of(URLS[2])
    damaged.write_bytes(b"x" * 1000)
    short.write_bytes(b"x")
    report = verify(cache, keep=True, progress=False)
    assert {entry.name for entry in report.damaged} == {damaged.name, short.name}
    assert (len(report.intact), report.removed) == (2, [])
    assert damaged.exists()
    report = verify(cache, progress=False)
    assert set(report.removed) == {damaged.name, short.name}
    assert len(cache.entries()) == 2
    assert verify(cache, progress=False).damaged == []
    nothing_left_over_but_locks(Path(cache.directory))


def test_evict_what_was_unused_for_longest(cache, origin):
    filled(cache)
    report = evict(Cache(cache.directory, max_bytes=2500))
    assert [entry.url[-7:] for entry in report.removed] == ["0.tar?…", "1.tar?…"]
    assert (report.left, len(entries(cache))) == (2000, 2)
    assert evict(Cache(cache.directory, max_bytes=2500)).removed == []


def test_evict_some_or_all(cache, origin):
    filled(cache)
    mine = Path(cache.directory) / "mine.txt"
    mine.write_text("keep")
    report = evict(cache, [URLS[1], "mem://host/9.tar"])
    assert ([entry.size for entry in report.removed], report.absent) == ([1000], ["mem://host/9.tar"])
    assert report.left == 3000
    report = evict(cache, everything=True)
    assert (len(report.removed), report.left) == (3, 0)
    assert mine.read_text() == "keep"
    with pytest.raises(UsageError):
        evict(cache)


def test_shards_being_read_stay(cache, origin):
    filled(cache)
    name = cache.path_of(URLS[0])
    script = (
        "import fcntl, sys\nfile = open(sys.argv[1], 'rb')\nfcntl.flock(file, fcntl.LOCK_SH)\n"
        "print('ready', flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout.readline() == b"ready\n"
        report = evict(cache, everything=True)
        assert ([entry.name for entry in report.in_use], report.left) == ([name.name], 1000)
        assert evict(Cache(cache.directory, max_bytes=1)).removed == []
        reader.communicate()
    assert len(evict(cache, everything=True).removed) == 1


def test_a_cache_that_is_not_there(tmp_path):
    cache = Cache(tmp_path / "none")
    assert verify(cache, progress=False).intact == []
    assert evict(cache, everything=True).removed == []
    assert not (tmp_path / "none").exists()


def test_the_cache_of_the_environment(tmp_path, origin, monkeypatch):
    monkeypatch.delenv("WDS_CACHE", raising=False)
    with pytest.raises(UsageError, match="WDS_CACHE"):
        verify()
    monkeypatch.setenv("WDS_CACHE", str(tmp_path / "env"))
    assert str(warm(None, URLS, storage=FAST, progress=False)).startswith("4 downloaded")
    assert str(verify(str(tmp_path / "env"), progress=False)) == "4 intact, 0 damaged"
    report = evict(max_bytes=2000)
    assert str(report) == "2 removed, 2000 bytes freed, 2000 bytes left"
    assert report.to_dict()["left"] == 2000
