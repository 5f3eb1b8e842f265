"""One cache with several users, and with a clock that changes."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import pytest

import tarmac
from harness.shards import plain
from storage.caches import read
from tarmac.compat.webdataset.cache import FileCache
from tarmac.errors import AccessDenied, CacheDisabled
from tarmac.storage import Cache, enforce_security

DAY = 86_400
ALICE, BOB, GROUP = 60_001, 60_002, 60_100
URLS = [f"mem://a/{number}.tar" for number in range(6)]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


# ---- the clock


@pytest.mark.parametrize("jump", [-DAY, DAY, -400 * DAY])
@pytest.mark.parametrize("when", [1, 3])
def test_the_order_of_use_survives_clock_changes(tmp_path, origin, monkeypatch, jump, when):
    """The order of eviction is the order of use, whatever the clock says."""
    real, offset = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real() + offset[0] * 10**9)
    cache = Cache(tmp_path, max_bytes=4 * origin.size)
    for number, url in enumerate(URLS[:4]):
        if number == when:
            offset[0] = jump
        read(cache, url)
    offset[0] = 0  # and back
    read(cache, URLS[0])
    assert [entry.name for entry in cache.entries()] == [
        cache.path_of(URLS[number]).name for number in (1, 2, 3, 0)
    ]
    for url in URLS[4:]:
        read(cache, url)
    assert [cache.path_of(url).exists() for url in URLS] == [True, False, False, True, True, True]


def test_a_retired_entry_is_evicted_first(tmp_path, origin, monkeypatch):
    cache = Cache(tmp_path, max_bytes=3 * origin.size)
    monkeypatch.setattr(time, "time_ns", lambda: 10**9 * DAY)  # 1970
    for url in URLS[:3]:
        read(cache, url)
    cache.retire(URLS[2])
    read(cache, URLS[3])
    assert [cache.path_of(url).exists() for url in URLS[:4]] == [True, True, False, True]


@pytest.mark.parametrize("kind", [str, Path, Cache])
def test_a_directory_is_a_cache(tmp_path, origin, monkeypatch, kind):
    monkeypatch.setattr(origin, "body", lambda url: plain())
    url, cache = URLS[0], kind(tmp_path / "cache")
    assert len(list(tarmac.read(url, cache=cache))) > 0
    assert tarmac.Dataset(url, cache=cache)[0]
    assert next(iter(tarmac.WebDataset(url, cache=cache, shardshuffle=False)))
    assert [entry.url for entry in Cache(tmp_path / "cache").entries()] == [url]


# ---- several users


@pytest.fixture
def shared():
    """A directory that other users can access, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        yield Path(path)


def as_user(user: int, work, *, umask: int = 0o022, groups: tuple[int, ...] = ()) -> str:
    """Run `work` in a child process of another user; return its result as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(list(groups))
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            os.umask(umask)
            os.write(writer, str(work()).encode())
        except BaseException:
            os.write(writer, traceback.format_exc().encode())
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        result = file.read().decode()
    os.waitpid(pid, 0)
    return result


def use(root: Path, origin, url: str = URLS[0]):
    """Read through a cache; report the number of downloads and whether the cache was usable."""

    def work() -> str:
        before = len(origin.fetched)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            right = read(Cache(root, max_bytes=3 * origin.size), url) == origin.body(url)
        disabled = any(warning.category is CacheDisabled for warning in seen)
        return f"{right} {len(origin.fetched) - before} {'disabled' if disabled else 'used'}"

    return work


@as_root
@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_a_group_shares_a_cache_whatever_the_umask(shared, origin, umask):
    root = shared / "cache"
    root.mkdir()
    os.chown(root, 0, GROUP)
    os.chmod(root, 0o2770)
    for user, url, expected in (
        (ALICE, URLS[0], "True 1 used"),
        (BOB, URLS[0], "True 0 used"),
        (BOB, URLS[1], "True 1 used"),
        (ALICE, URLS[1], "True 0 used"),
        (ALICE, URLS[2], "True 1 used"),
        (BOB, URLS[3], "True 1 used"),  # evicts an entry of the other user
        (ALICE, URLS[3], "True 0 used"),
    ):
        assert as_user(user, use(root, origin, url), umask=umask, groups=(GROUP,)) == expected
    assert len(Cache(root).entries()) == 3
    for path in (*root.iterdir(), *root.glob(".tarmac/*/*")):
        result = path.stat()
        assert result.st_gid == GROUP
        assert not result.st_mode & 0o002
        if path.is_file():
            assert stat.S_IMODE(result.st_mode) & 0o060 == 0o060
    assert as_user(BOB, use(root, origin), groups=()) == "True 1 disabled"  # not a member of the group


@as_root
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_cache_that_is_not_shared_follows_the_umask(shared, origin, umask):
    root = shared / "cache"
    os.chmod(shared, 0o777)
    assert as_user(ALICE, use(root, origin), umask=umask) == "True 1 used"
    for path in (root, *root.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & umask, path
    # Other users read accessible entries, stream the others, and change nothing.
    before = sorted(map(str, root.rglob("*")))
    asked = 0 if umask == 0o022 else 1
    assert as_user(BOB, use(root, origin)) == f"True {asked} {'disabled' if asked else 'used'}"
    assert as_user(BOB, use(root, origin, URLS[1])) == "True 1 disabled"
    assert sorted(map(str, root.rglob("*"))) == before


@as_root
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_cache_of_webdataset_in_a_directory_of_another_user(shared, origin, umask):
    def work() -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheDisabled)
            [opened] = FileCache(shared / "cache", cache_size=10**6)([{"url": URLS[0]}])
            return str(opened["stream"].read() == origin.body(URLS[0]))

    os.chmod(shared, 0o777)
    assert as_user(ALICE, work, umask=umask) == "True"
    (shared / "cache/.tarmac/parts/half.0123").write_bytes(b"half")
    assert as_user(BOB, work) == "True"
    assert as_user(ALICE, work, umask=umask) == "True"


@as_root
def test_read_only_entries(shared, origin):
    root = shared / "cache"
    os.chmod(shared, 0o777)
    as_user(ALICE, use(root, origin))
    [entry] = [path for path in root.iterdir() if path.is_file()]
    entry.chmod(0o444)
    assert as_user(ALICE, use(root, origin)) == "True 0 used"
    assert as_user(ALICE, lambda: Cache(root).remove(entry.name)) == "True"


@as_root
def test_secure_mode_rejects_caches_that_others_can_write(shared, origin):
    """Users with write access control the content of a cache."""

    def securely(root):
        def work():
            enforce_security()
            return use(root, origin)()

        return work

    os.chmod(shared, 0o777)
    own, others, everybodys = shared / "own", shared / "others", shared / "everybodys"
    assert as_user(ALICE, use(others, origin)) == "True 1 used"
    everybodys.mkdir()
    os.chmod(everybodys, 0o1777)
    for _ in range(2):
        assert as_user(BOB, securely(others)) == "True 1 disabled"
        assert as_user(BOB, securely(everybodys)) == "True 1 disabled"
    assert as_user(BOB, securely(own)) == "True 1 used"
    assert as_user(BOB, securely(own)) == "True 0 used"
    assert list(everybodys.iterdir()) == []


@as_root
def test_an_inaccessible_cache_is_an_error_and_not_empty(shared, origin):
    def refused(work):
        def attempt():
            enforce_security()
            try:
                return work(Cache(shared / "cache", max_bytes=1))
            except AccessDenied as error:
                return f"{error}"

        return attempt

    os.chmod(shared, 0o777)
    as_user(ALICE, use(shared / "cache", origin))
    [entry] = Cache(shared / "cache").entries()
    for work in (Cache.entries, Cache.clean, lambda cache: cache.is_sound(entry.name)):
        assert as_user(BOB, refused(work)).startswith(f"{shared}/cache: secure mode")
    assert Cache(shared / "none").entries() == []
    assert Cache(shared / "none").clean() == 0


def test_notes_contain_no_secrets(tmp_path, origin):
    url = "mem://user:SECRET@host/x.tar?sig=SECRET"
    read(Cache(tmp_path), url)
    for path in tmp_path.rglob("*"):
        assert "SECRET" not in path.name
        if path.is_file() and ".tarmac" in str(path):
            assert b"SECRET" not in path.read_bytes()
