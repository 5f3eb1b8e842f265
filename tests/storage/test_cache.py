"""The cache returns the bytes of the URL, also when other processes use it or die."""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tarmac
from harness import rounds
from harness.faultserver import Action, FaultServer
from storage.caches import (
    FAST,
    entries,
    nothing_left_over,
    nothing_left_over_but_locks,
    read,
    shard_bytes,
)
from tarmac.errors import NotFound, ShortRead, TarmacError
from tarmac.storage import Cache

# ---- names

URLS = st.builds(
    "{}://{}/{}{}".format,
    st.sampled_from(["http", "https", "s3", "gs", "hf"]),
    st.sampled_from(["a", "b", "a.b"]),
    st.text("ab/%._-é", max_size=12),
    st.sampled_from(["", "?v=1", "?v=2", "?sig=/x.tar"]),
)


@given(st.lists(URLS | st.text(max_size=300), min_size=2, max_size=30, unique=True))
@settings(deadline=None, derandomize=True, max_examples=rounds(200))
def test_different_urls_never_share_an_entry(urls):
    cache = Cache("/cache")
    names = [cache.path_of(url) for url in urls]
    assert len(set(names)) == len(urls)
    for name in names:
        assert name.parent == Path("/cache")
        assert re.fullmatch(r"[0-9a-f]{32}-[A-Za-z0-9._-]{0,80}", name.name)


def test_names_are_readable_and_contain_no_secrets():
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


# ---- entries are verified


def test_a_second_process_uses_the_entry(tmp_path, origin):
    for _ in range(3):
        assert read(Cache(tmp_path), "mem://a/x.tar") == origin.body("mem://a/x.tar")
    assert len(origin.fetched) == 1
    nothing_left_over_but_locks(tmp_path)


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
def test_a_damaged_entry_is_downloaded_again(tmp_path, origin, kind):
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


def test_part_files_of_dead_downloads_are_removed(tmp_path, origin):
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
    body = shard_bytes("body", 100_000)
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

    one, two = shard_bytes(1, 1000), shard_bytes(2, 1000)
    with tempfile.TemporaryDirectory() as root, FaultServer(one) as server:
        lazy, careful = Cache(root), Cache(root, revalidate=True)
        assert read(lazy, server.url) == one
        assert read(careful, server.url) == one
        assert [request.method for request in server.requests] == ["GET", "HEAD"]
        server.script([Action(change=(two, '"v2"'))])
        assert read(careful, server.url) == two  # also for an entry of a cache without revalidation
        assert read(lazy, server.url) == two
        server.clear()
        assert read(careful, server.url) == two
        assert [request.method for request in server.requests] == ["HEAD"]


def test_revalidation_without_etags(tmp_path):
    with FaultServer(b"1234", etag=None) as server:
        cache = Cache(tmp_path, revalidate=True, check=None)
        assert read(cache, server.url) == b"1234"
        server.script([Action(change=(b"12345", None))])
        assert read(cache, server.url) == b"12345"


def test_an_entry_replaced_while_it_is_read(tmp_path):
    one, two = shard_bytes(1, 100_000), shard_bytes(2, 100_000)
    with FaultServer(one) as server:
        cache = Cache(tmp_path, revalidate=True)
        with cache.open_read(server.url, FAST) as first:
            assert first.read(10) == one[:10]
            server.script([Action(change=(two, '"v2"'))])
            assert read(cache, server.url) == two  # in the same thread: no lock blocks
            rest = b"".join(iter(lambda: first.read(1 << 16), b""))
            assert rest == one[10:]


# ---- originals


def test_local_files_are_not_cached(tmp_path):
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


def test_a_cache_is_picklable(tmp_path, origin):
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
    body = shard_bytes("body", 50_000)
    with FaultServer(body, etag=None) as server:
        server.script([Action(cut=10_000)] * 3)
        cache = Cache(tmp_path)
        for _ in range(3):
            with pytest.raises(ShortRead):
                read(cache, server.url)
        assert read(cache, server.url) == body
