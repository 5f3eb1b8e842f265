"""The cache gives the bytes of the URL asked for, within its budget, whoever else uses it or dies."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import re
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness.faultserver import Action, FaultServer
from tarmac.errors import CacheDisabled, NotFound, ShortRead, TarmacError
from tarmac.storage import Cache, StorageOptions, register_scheme, schemes

FAST = StorageOptions(backoff=0.001, max_backoff=0.005, retries=2, idle=5)


class Origin:
    """Shards made from their URLs, and a count of how often each was fetched."""

    def __init__(self, size: int = 20_000) -> None:
        self.size = size
        self.fetched: list[str] = []
        self.salt = ""

    def body(self, url: str) -> bytes:
        return random.Random(url + self.salt).randbytes(self.size)

    def open(self, url: str) -> io.BytesIO:
        self.fetched.append(url)
        return io.BytesIO(self.body(url))


@pytest.fixture
def origin(monkeypatch):
    monkeypatch.setattr(schemes, "_registered", {})
    found = Origin()
    register_scheme("mem", found.open)
    return found


def read(cache: Cache, url: str, options: StorageOptions = FAST) -> bytes:
    with cache.open_read(url, options) as source:
        return b"".join(iter(lambda: source.read(1 << 16), b""))


def entries(cache: Cache) -> set[str]:
    return {path.name for path in Path(cache.directory).iterdir() if path.is_file()}


def total(cache: Cache) -> int:
    return sum(path.stat().st_size for path in Path(cache.directory).iterdir() if path.is_file())


def nothing_left_over(cache: Cache) -> None:
    root = Path(cache.directory)
    assert os.listdir(root / ".tarmac/parts") == []
    assert set(os.listdir(root / ".tarmac/notes")) == entries(cache)
    assert set(os.listdir(root / ".tarmac/locks")) <= {"budget"}


# ---- names

URLS = st.builds(
    "{}://{}/{}{}".format,
    st.sampled_from(["http", "https", "s3", "gs", "hf"]),
    st.sampled_from(["a", "b", "a.b"]),
    st.text("ab/%._-é", max_size=12),
    st.sampled_from(["", "?v=1", "?v=2", "?sig=/x.tar"]),
)


@given(st.lists(URLS | st.text(max_size=300), min_size=2, max_size=30, unique=True))
@settings(deadline=None, derandomize=True, max_examples=500)
def test_different_urls_never_share_an_entry(urls):
    cache = Cache("/cache")
    names = [cache.path_of(url) for url in urls]
    assert len(set(names)) == len(urls)
    for name in names:
        assert name.parent == Path("/cache")
        assert re.fullmatch(r"[0-9a-f]{32}-[A-Za-z0-9._-]{0,80}", name.name)


def test_names_are_readable_and_hold_no_secrets():
    cache = Cache("~/c")
    assert cache.path_of("s3://b/train-000001.tar?sig=SECRET").name.endswith("-train-000001.tar")
    for url in (
        "http://u:SECRET@host",
        "http://u:SECRET@host/x",
        "http://h/x?k=SECRET",
        "pipe:x --token=SECRET",
    ):
        assert "SECRET" not in str(cache.path_of(url))
    assert cache.path_of("s3://b/x").parent == Path("~/c").expanduser()


def test_the_same_basename_on_different_hosts(tmp_path, origin):
    cache = Cache(tmp_path)
    urls = ["mem://a/train/0.tar", "mem://b/val/0.tar", "mem://a/train/0.tar?v=2", "mem://a/train//0.tar"]
    for _ in range(2):
        for url in urls:
            assert read(cache, url) == origin.body(url)
    assert sorted(origin.fetched) == sorted(urls)


# ---- what is in the directory is checked


def test_a_second_process_finds_it(tmp_path, origin):
    for _ in range(3):
        assert read(Cache(tmp_path), "mem://a/x.tar") == origin.body("mem://a/x.tar")
    assert len(origin.fetched) == 1
    nothing_left_over_but_locks(tmp_path)


def nothing_left_over_but_locks(root: Path) -> None:
    assert os.listdir(root / ".tarmac/parts") == []


def spoil(kind: str, entry: Path, note: Path, other: Path) -> None:
    data = entry.read_bytes()
    if kind == "truncated":
        entry.write_bytes(data[:-1])
    elif kind == "longer":
        entry.write_bytes(data + b"x")
    elif kind == "garbage":
        entry.write_bytes(os.urandom(len(data)))
    elif kind == "flipped":
        entry.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif kind == "swapped":
        entry.write_bytes(other.read_bytes())
    elif kind == "swapped with its note":
        entry.write_bytes(other.read_bytes())
        note.write_bytes((note.parent / other.name).read_bytes())
    elif kind == "empty":
        entry.write_bytes(b"")
    elif kind == "gone":
        entry.unlink()
    elif kind == "directory":
        entry.unlink()
        entry.mkdir()
    elif kind == "dangling":
        entry.unlink()
        entry.symlink_to("/nonexistent")
    elif kind == "note gone":
        note.unlink()
    elif kind.startswith("note: "):
        note.write_bytes(kind.removeprefix("note: ").encode("latin-1"))
    elif kind == "note deep":
        note.write_text("[" * 200_000)
    elif kind == "note of another size":
        note.write_text(json.dumps({**json.loads(note.read_text()), "size": 3}))
    elif kind == "note of another digest":
        note.write_text(json.dumps({**json.loads(note.read_text()), "digest": "0" * 16}))


KINDS = [
    "truncated",
    "longer",
    "garbage",
    "flipped",
    "swapped",
    "swapped with its note",
    "empty",
    "gone",
    "dangling",
]
KINDS += ["note gone", "note deep", "note of another size", "note of another digest"]
KINDS += [f"note: {text}" for text in ("", "{", "[]", "{}", "null", "\xff\xfe", '{"url": 1}', "3")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_spoiled_entry_is_fetched_again(tmp_path, origin, kind):
    url, other = "mem://a/x.tar", "mem://a/y.tar"
    first = Cache(tmp_path)
    for name in (url, other):
        read(first, name)
    entry = first.path_of(url)
    spoil(kind, entry, tmp_path / ".tarmac/notes" / entry.name, first.path_of(other))
    origin.fetched.clear()
    cache = Cache(tmp_path)
    assert read(cache, url) == origin.body(url)
    assert origin.fetched == [url]
    assert read(cache, url) == origin.body(url)
    assert read(Cache(tmp_path), other) == origin.body(other)
    assert origin.fetched == [url]
    cache.clean()
    nothing_left_over(cache)


def test_parts_of_dead_downloads_are_swept(tmp_path, origin):
    cache = Cache(tmp_path)
    read(cache, "mem://a/x.tar")
    entry = cache.path_of("mem://a/y.tar").name
    for name in (f"{entry}.0123", f"{entry}.4567", f"{cache.path_of('mem://a/z').name}.77"):
        (tmp_path / ".tarmac/parts" / name).write_bytes(b"half")
    read(cache, "mem://a/y.tar")
    assert len(os.listdir(tmp_path / ".tarmac/parts")) == 1
    assert cache.clean() == 4
    nothing_left_over(cache)
    assert Cache(tmp_path / "never used").clean() == 0


def test_a_failed_download_leaves_nothing(tmp_path):
    body = os.urandom(100_000)
    cache = Cache(tmp_path)
    with FaultServer(body, etag=None) as server:
        for action in (
            Action(cut=50_000),
            Action(status=404),
            Action(status=503),
            Action(framing="chunked", cut=9),
        ):
            server.script([], then=action)
            with pytest.raises(TarmacError), warnings.catch_warnings():
                warnings.simplefilter("error")
                read(cache, server.url)
            assert entries(cache) == set()
            assert os.listdir(tmp_path / ".tarmac/parts") == []
        server.script([])
        assert read(cache, server.url) == body
        assert read(cache, server.url) == body
    with pytest.raises(NotFound):
        Cache(tmp_path).open_read(str(tmp_path / "none.tar"))


def test_revalidation():
    import tempfile

    one, two = os.urandom(1000), os.urandom(1000)
    with tempfile.TemporaryDirectory() as root, FaultServer(one) as server:
        lazy, careful = Cache(root), Cache(root, revalidate=True)
        assert read(lazy, server.url) == one
        assert read(careful, server.url) == one
        assert [request.method for request in server.requests] == ["GET", "HEAD"]
        server.script([Action(change=(two, '"v2"'))])
        assert read(careful, server.url) == two  # also where the entry was made without looking
        assert read(lazy, server.url) == two
        server.clear()
        assert read(careful, server.url) == two
        assert [request.method for request in server.requests] == ["HEAD"]


def test_revalidation_without_etags(tmp_path):
    with FaultServer(b"1234", etag=None) as server:
        cache = Cache(tmp_path, revalidate=True)
        assert read(cache, server.url) == b"1234"
        server.script([Action(change=(b"12345", None))])
        assert read(cache, server.url) == b"12345"


def test_an_entry_replaced_while_it_is_read(tmp_path):
    one, two = os.urandom(100_000), os.urandom(100_000)
    with FaultServer(one) as server:
        cache = Cache(tmp_path, revalidate=True)
        with cache.open_read(server.url, FAST) as first:
            assert first.read(10) == one[:10]
            server.script([Action(change=(two, '"v2"'))])
            assert read(cache, server.url) == two  # in the same thread: nobody waits for anybody
            rest = b"".join(iter(lambda: first.read(1 << 16), b""))
            assert rest == one[10:]


# ---- originals


def test_local_files_are_opened_where_they_are(tmp_path):
    path = tmp_path / "x.tar"
    path.write_bytes(b"original")
    before = path.stat()
    cache = Cache(tmp_path / "cache", max_bytes=1)
    for url in (str(path), f"file://{path}", f"file:{path}"):
        assert read(cache, url) == b"original"
    assert not (tmp_path / "cache").exists()
    assert path.stat() == before


def test_other_files_in_the_directory_are_never_touched(tmp_path, origin):
    mine = ["0" * 32 + "-x.tar", "train-000.tar", "notes.json", "x.part-1", ".hidden"]
    for name in mine:
        (tmp_path / name).write_bytes(bytes(50_000))
    cache = Cache(tmp_path, max_bytes=30_000)
    for number in range(5):
        read(cache, f"mem://a/{number}.tar")
    cache.clean()
    for name in mine:
        assert (tmp_path / name).stat().st_size == 50_000
    assert len(entries(cache)) == len(mine) + 1


# ---- budget


def test_the_budget_is_kept_by_removing_what_was_used_longest_ago(tmp_path, origin):
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
    with cache.open_read("mem://a/0") as held, other.open_read("mem://a/0") as held_too:
        for number in range(1, 6):
            read(other, f"mem://a/{number}")
        assert cache.path_of("mem://a/0").exists()
        assert held.read(10) == held_too.read(10) == origin.body("mem://a/0")[:10]
        with other.open_read("mem://a/9"):
            read(cache, "mem://a/8")  # everything is in use: over the budget for as long as that lasts
    assert cache.clean() > 0
    assert total(cache) <= 2 * origin.size


def test_a_shard_larger_than_the_budget_is_streamed(tmp_path):
    body = os.urandom(100_000)
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


def test_a_smaller_budget_later(tmp_path, origin):
    for number in range(5):
        read(Cache(tmp_path), f"mem://a/{number}")
    small = Cache(tmp_path, max_bytes=origin.size)
    assert small.clean() >= 4 * origin.size
    assert len(entries(small)) == 1
    nothing_left_over(small)


# ---- directories that cannot be used


def streams_with_one_warning(cache: Cache, origin: Origin) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for number in range(5):
            url = f"mem://w/{number % 3}"
            assert read(cache, url) == origin.body(url)
    assert [warning.category for warning in seen] == [CacheDisabled]
    assert str(cache.directory) in str(seen[0].message)


def test_a_directory_that_cannot_be_made(tmp_path, origin):
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
    if call == "write":
        real = Path.open

        def opening(self, mode="r", *args, **kwargs):
            if "parts" in str(self):
                fail()
            return real(self, mode, *args, **kwargs)

        monkeypatch.setattr(Path, "open", opening)
    elif call == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr("tarmac.storage.locks.os.open", fail)
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
        with pytest.warns(CacheDisabled, match="No space"):
            for number in range(8):
                assert read(cache, f"mem://f/{number}") == origin.body(f"mem://f/{number}")
        assert os.listdir(tmp_path / ".tarmac/parts") == []
        origin.fetched.clear()
        assert read(cache, "mem://f/0") == origin.body("mem://f/0")
        assert origin.fetched == []  # what is there is still used
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_cache_can_be_sent_to_a_worker(tmp_path, origin):
    import pickle

    cache = Cache(tmp_path, max_bytes=10**6)
    read(cache, "mem://a/x")
    again = pickle.loads(pickle.dumps(cache))
    assert read(again, "mem://a/x") == origin.body("mem://a/x")
    assert len(origin.fetched) == 1


def test_samples_through_the_cache(tmp_path):
    with tarmac.TarWriter(tmp_path / "x.tar") as shard:
        for number in range(10):
            shard.write({"__key__": str(number), "txt": "x" * 1000})
    with FaultServer((tmp_path / "x.tar").read_bytes()) as server:
        cache = Cache(tmp_path / "cache")
        for _ in range(3):
            assert len(list(tarmac.read(server.url, cache=cache, storage=FAST))) == 10
        assert len(server.requests) == 1


def test_a_short_body_is_never_cached(tmp_path):
    body = os.urandom(50_000)
    with FaultServer(body, etag=None) as server:
        server.script([Action(cut=10_000)] * 3)
        cache = Cache(tmp_path)
        for _ in range(3):
            with pytest.raises(ShortRead):
                read(cache, server.url)
        assert read(cache, server.url) == body
