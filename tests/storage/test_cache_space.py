"""The cache respects `max_bytes`; an unusable directory causes a warning and loses no sample."""

from __future__ import annotations

import errno
import os
import warnings

import pytest

from harness.faultserver import Action, FaultServer
from storage.caches import (
    Origin,
    entries,
    nothing_left_over,
    nothing_left_over_but_locks,
    read,
    shard_bytes,
    total,
)
from tarmac.errors import CacheDisabled, CacheFull
from tarmac.storage import Cache

# ---- budget


def test_the_least_recently_used_entries_are_evicted(tmp_path, origin):
    cache = Cache(tmp_path, max_bytes=5 * origin.size)
    urls = [f"mem://a/{number}.json" for number in range(5)]
    for url in urls:
        read(cache, url)
    read(cache, urls[0])
    for number in range(3):
        read(cache, f"mem://b/{number}.tar")
        assert total(cache) <= 5 * origin.size
    kept = [url for url in urls if cache.path_of(url).exists()]
    assert kept == [urls[0], urls[4]]
    origin.fetched.clear()
    read(cache, urls[0])
    assert origin.fetched == []


def test_entries_in_use_are_not_evicted(tmp_path, origin):
    cache, other = Cache(tmp_path, max_bytes=2 * origin.size), Cache(tmp_path, max_bytes=2 * origin.size)
    warned: list[type[Warning]] = []
    with cache.open_read("mem://a/0") as held, other.open_read("mem://a/0") as held_too:
        for number in range(1, 6):
            read(other, f"mem://a/{number}")
        assert cache.path_of("mem://a/0").exists()
        assert held.read(10) == held_too.read(10) == origin.body("mem://a/0")[:10]
        with other.open_read("mem://a/9"):
            for _ in range(2):  # all entries are in use, so the shard is read from its store
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    assert read(cache, "mem://a/8") == origin.body("mem://a/8")
                    warned.extend(warning.category for warning in caught)
                assert total(cache) == 2 * origin.size
    assert warned == [CacheFull]
    read(cache, "mem://a/8")
    assert cache.path_of("mem://a/8").exists()
    assert total(cache) == 2 * origin.size
    assert cache.clean() == 0
    nothing_left_over(cache)


def test_a_shard_larger_than_max_bytes_is_streamed(tmp_path):
    body = shard_bytes("body", 100_000)
    with FaultServer(body) as server:
        cache = Cache(tmp_path, max_bytes=50_000)
        for action in (Action(), Action(framing="chunked")):
            server.script([], then=action)
            assert read(cache, server.url) == body
            assert entries(cache) == set()
    cache.clean()
    nothing_left_over(cache)
    with pytest.raises(ValueError, match="max_bytes"):
        Cache(tmp_path, max_bytes=0)


def test_max_bytes_can_shrink(tmp_path, origin):
    for number in range(5):
        read(Cache(tmp_path), f"mem://a/{number}")
    small = Cache(tmp_path, max_bytes=origin.size)
    assert small.clean() >= 4 * origin.size
    assert len(entries(small)) == 1
    nothing_left_over(small)


# ---- unusable directories


def streams_with_one_warning(cache: Cache, origin: Origin) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for number in range(5):
            url = f"mem://w/{number % 3}"
            assert read(cache, url) == origin.body(url)
    assert [warning.category for warning in seen] == [CacheDisabled]
    assert str(cache.directory) in str(seen[0].message)


def test_a_directory_that_cannot_be_created(tmp_path, origin):
    (tmp_path / "file").touch()
    streams_with_one_warning(Cache(tmp_path / "file"), origin)
    streams_with_one_warning(Cache(tmp_path / "file" / "below"), origin)
    streams_with_one_warning(Cache("/proc/none"), origin)


@pytest.mark.parametrize("call", ["write", "replace", "open"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_directory_that_fails(tmp_path, origin, monkeypatch, call, error):
    def fail(*_, **__):
        raise OSError(error, os.strerror(error))

    cache = Cache(tmp_path)
    read(cache, "mem://a/before")
    monkeypatch.setattr(os, call, fail)
    streams_with_one_warning(cache, origin)
    monkeypatch.undo()
    nothing_left_over_but_locks(tmp_path)


def test_a_real_full_disk(tmp_path, origin):
    import subprocess

    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root can mount a small file system")
    try:
        origin.size = 60_000
        cache = Cache(tmp_path)
        with pytest.warns(CacheDisabled, match=os.strerror(errno.ENOSPC)):
            for number in range(8):
                assert read(cache, f"mem://f/{number}") == origin.body(f"mem://f/{number}")
        assert os.listdir(tmp_path / ".tarmac/parts") == []
        origin.fetched.clear()
        assert read(cache, "mem://f/0") == origin.body("mem://f/0")
        assert origin.fetched == []  # existing entries are still used
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
