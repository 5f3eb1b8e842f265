"""Opening shards as streams and through a directory of downloads."""

from __future__ import annotations

import os
import pickle

import pytest

from harness.shards import plain
from tarmac.compat.filecache import (
    FileCache,
    LRUCleanup,
    StreamingOpen,
    check_tar_format,
    download,
    last_used,
    magic_filetype,
    url_to_cache_name,
)
from tarmac.compat.gopen import gopen_schemes, open_url
from tarmac.compat.opening import group_by_keys, tar_file_expander
from tarmac.errors import NotATar
from tarmac.steps.handlers import ignore_and_continue

DATA = plain([("x.txt", b"1")])


@pytest.fixture
def remote(tmp_path):
    """Files under tmp_path/remote as far://, with a count of what is fetched."""
    place = tmp_path / "remote"
    place.mkdir()
    fetched = []

    def opened(url, mode, bufsize=8192):
        fetched.append(url)
        return open_url(str(place / url.partition("://")[2].replace("/", "_")), mode)

    gopen_schemes["far"] = opened
    yield place, fetched
    del gopen_schemes["far"]


def test_streams(tmp_path, remote, caplog):
    place, _ = remote
    (place / "a.tar").write_bytes(DATA)
    local = str(place / "a.tar")
    opened = list(StreamingOpen()([local, {"url": "far://a.tar", "part": (0, 1)}, f"file:{local}"]))
    assert [shard.get("local_path") for shard in opened] == [local, None, local]
    assert opened[1]["part"] == (0, 1)
    samples = list(group_by_keys(tar_file_expander(opened)))
    assert [sample.get("__local_path__") for sample in samples] == [local, None, local]
    with caplog.at_level("INFO"):
        list(tar_file_expander(StreamingOpen(verbose=True)([local])))
    assert local in caplog.text
    assert list(StreamingOpen(handler=ignore_and_continue)(["/none"])) == []


def test_downloads_are_kept(tmp_path, remote):
    place, fetched = remote
    (place / "a.tar").write_bytes(DATA)
    cache = pickle.loads(pickle.dumps(FileCache(tmp_path / "cache")))
    for _ in range(3):
        (shard,) = cache(["far://a.tar"])
        shard["stream"].close()
    assert fetched == ["far://a.tar"]
    assert os.path.dirname(shard["local_path"]) == str(tmp_path / "cache")
    assert cache.get_file("far://a.tar") == shard["local_path"]
    assert cache.get_file(str(place / "a.tar")) == str(place / "a.tar")


def test_issue_402_entries_of_different_urls_do_not_meet(tmp_path, remote):
    place, _ = remote
    (place / "train_0.tar").write_bytes(DATA)
    (place / "val_0.tar").write_bytes(plain([("y.txt", b"2")]))
    cache = FileCache(tmp_path / "cache", url_to_name=lambda url: "0.tar")
    paths = [cache.get_file(f"far://{name}/0.tar") for name in ("train", "val")]
    assert len(set(paths)) == 2
    assert all(path.endswith("0.tar") for path in paths)


def test_what_is_no_archive_is_not_kept(tmp_path, remote):
    place, fetched = remote
    (place / "a.tar").write_bytes(b"<html>not found</html>")
    cache = FileCache(tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(NotATar, match=r"far://a\.tar"):
            cache.get_file("far://a.tar")
    assert fetched == ["far://a.tar"] * 2
    assert list(FileCache(tmp_path / "cache", handler=ignore_and_continue)(["far://a.tar"])) == []
    assert FileCache(tmp_path / "cache", validator=None).get_file("far://a.tar")


def test_the_directory_stays_small(tmp_path, remote, caplog):
    place, _ = remote
    for i in range(5):
        (place / f"{i}.tar").write_bytes(DATA)
    cache = FileCache(tmp_path / "cache", cache_size=2 * len(DATA), cache_cleanup_interval=0, verbose=True)
    with caplog.at_level("INFO"):
        for i in range(5):
            cache.get_file(f"far://{i}.tar")
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_file()]) == 2
    assert "downloading far://4.tar" in caplog.text
    large = FileCache(tmp_path / "small", cache_size=10)
    (shard,) = large(["far://0.tar"])
    assert "local_path" not in shard
    assert shard["stream"].read() == DATA
    shard["stream"].close()
    with pytest.raises(OSError, match="cannot be kept"):
        large.get_file("far://0.tar")


def test_the_directory_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WDS_CACHE", str(tmp_path / "there"))
    assert FileCache().cache_dir == str(tmp_path / "there")


def test_names():
    assert url_to_cache_name("http://h/a/b/c.tar?x=1") == "c.tar"
    assert url_to_cache_name("s3://bucket/a/b/c.tar", 1) == "b/c.tar"
    assert url_to_cache_name("pipe:cat x") == "pipe%3Acat%20x"
    assert len(url_to_cache_name("pipe:" + "x" * 500)) == 128


def test_kinds_of_files(tmp_path):
    path = str(tmp_path / "x")
    kinds = [(DATA, True), (b"\x1f\x8b\x08", True), (b"BZh9", True), (bytes(1024), True), (b"text", False)]
    for data, good in [*kinds, (b"", False)]:
        (tmp_path / "x").write_bytes(data)
        assert check_tar_format(path) is good, data
    assert magic_filetype(path) == f"{path}: data"


def test_looking_after_a_directory(tmp_path, caplog):
    for i in range(5):
        (tmp_path / f"{i}").write_bytes(bytes(100))
        os.utime(tmp_path / f"{i}", (i, i))
    (tmp_path / ".part").write_bytes(bytes(1000))
    (tmp_path / "0.temp123").write_bytes(bytes(1000))
    cleaner = LRUCleanup(cache_size=250, verbose=True, interval=1000)
    cleaner.cleanup()
    cleaner.set_cache_dir(tmp_path)
    with caplog.at_level("INFO"):
        cleaner.cleanup()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part", "0.temp123", "3", "4"]
    assert "removing" in caplog.text
    (tmp_path / "5").write_bytes(bytes(1000))
    cleaner.cleanup()
    assert (tmp_path / "5").exists()  # it is not time yet
    by_name = LRUCleanup(tmp_path, 1100, keyfn=lambda path: -int(os.path.basename(path)), interval=None)
    by_name.cleanup()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part", "0.temp123", "3", "4"]
    assert last_used(tmp_path / "4") == 4


def test_looking_after_a_directory_of_downloads(tmp_path, remote):
    place, _ = remote
    (place / "a.tar").write_bytes(DATA)
    cache = FileCache(tmp_path / "cache")
    path = cache.get_file("far://a.tar")
    (tmp_path / "cache" / "of the user").write_bytes(bytes(10_000))
    LRUCleanup(tmp_path / "cache", 100).cleanup()
    assert not os.path.exists(path)
    assert (tmp_path / "cache" / "of the user").exists()


def test_downloading(tmp_path, remote, caplog):
    place, _ = remote
    (place / "a.tar").write_bytes(DATA)
    with caplog.at_level("INFO"):
        download("far://a.tar", tmp_path / "copy.tar", chunk_size=100, verbose=True)
    assert (tmp_path / "copy.tar").read_bytes() == DATA
    assert "copy.tar" in caplog.text
