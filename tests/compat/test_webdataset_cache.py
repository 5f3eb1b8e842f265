"""Open shards as streams and through a directory of downloads."""

from __future__ import annotations

import os
import pickle

import pytest

from harness.shards import plain
from tarmac.compat.webdataset.cache import (
    FileCache,
    LRUCleanup,
    StreamingOpen,
    check_tar_format,
    download,
    last_used,
    magic_filetype,
    url_to_cache_name,
)
from tarmac.compat.webdataset.gopen import gopen_schemes, open_url
from tarmac.compat.webdataset.tariterators import group_by_keys, tar_file_expander
from tarmac.errors import NotATar
from tarmac.steps.handlers import ignore_and_continue

DATA = plain([("x.txt", b"1")])


@pytest.fixture
def remote(tmp_path):
    """Files under tmp_path/remote as remote://, with a list of requests."""
    directory = tmp_path / "remote"
    directory.mkdir()
    fetched = []

    def opened(url, mode, bufsize=8192):
        fetched.append(url)
        return open_url(str(directory / url.partition("://")[2].replace("/", "_")), mode)

    gopen_schemes["remote"] = opened
    yield directory, fetched
    del gopen_schemes["remote"]


def test_streams(tmp_path, remote, caplog):
    directory, _ = remote
    (directory / "a.tar").write_bytes(DATA)
    local = str(directory / "a.tar")
    opened = list(StreamingOpen()([local, {"url": "remote://a.tar", "part": (0, 1)}, f"file:{local}"]))
    assert [shard.get("local_path") for shard in opened] == [local, None, local]
    assert opened[1]["part"] == (0, 1)
    samples = list(group_by_keys(tar_file_expander(opened)))
    assert [sample.get("__local_path__") for sample in samples] == [local, None, local]
    with caplog.at_level("INFO"):
        list(tar_file_expander(StreamingOpen(verbose=True)([local])))
    assert local in caplog.text
    assert list(StreamingOpen(handler=ignore_and_continue)(["/none"])) == []


def test_downloads_are_kept(tmp_path, remote):
    directory, fetched = remote
    (directory / "a.tar").write_bytes(DATA)
    cache = pickle.loads(pickle.dumps(FileCache(tmp_path / "cache")))
    for _ in range(3):
        (shard,) = cache(["remote://a.tar"])
        shard["stream"].close()
    assert fetched == ["remote://a.tar"]
    assert os.path.dirname(shard["local_path"]) == str(tmp_path / "cache")
    assert cache.get_file("remote://a.tar") == shard["local_path"]
    assert cache.get_file(str(directory / "a.tar")) == str(directory / "a.tar")


def test_issue_402_entries_of_different_urls_do_not_collide(tmp_path, remote):
    directory, _ = remote
    (directory / "train_0.tar").write_bytes(DATA)
    (directory / "val_0.tar").write_bytes(plain([("y.txt", b"2")]))
    cache = FileCache(tmp_path / "cache", url_to_name=lambda url: "0.tar")
    paths = [cache.get_file(f"remote://{name}/0.tar") for name in ("train", "val")]
    assert len(set(paths)) == 2
    assert all(path.endswith("0.tar") for path in paths)


def test_other_files_are_not_kept(tmp_path, remote):
    directory, fetched = remote
    (directory / "a.tar").write_bytes(b"<html>not found</html>")
    cache = FileCache(tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(NotATar, match=r"remote://a\.tar"):
            cache.get_file("remote://a.tar")
    assert fetched == ["remote://a.tar"] * 2
    assert list(FileCache(tmp_path / "cache", handler=ignore_and_continue)(["remote://a.tar"])) == []
    assert FileCache(tmp_path / "cache", validator=None).get_file("remote://a.tar")


def test_the_directory_stays_small(tmp_path, remote, capfd):
    directory, _ = remote
    for i in range(5):
        (directory / f"{i}.tar").write_bytes(DATA)
    cache = FileCache(tmp_path / "cache", cache_size=2 * len(DATA), cache_cleanup_interval=0, verbose=True)
    for i in range(5):
        cache.get_file(f"remote://{i}.tar")
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_file()]) == 2
    assert "# downloading remote://4.tar" in capfd.readouterr().err
    large = FileCache(tmp_path / "small", cache_size=10)
    (shard,) = large(["remote://0.tar"])
    assert "local_path" not in shard
    assert shard["stream"].read() == DATA
    shard["stream"].close()
    with pytest.raises(OSError, match=r"small: .*0\.tar"):
        large.get_file("remote://0.tar")


def test_the_directory_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WDS_CACHE", str(tmp_path / "cache"))
    assert FileCache().cache_dir == str(tmp_path / "cache")


def test_names():
    assert url_to_cache_name("http://h/a/b/c.tar?x=1") == "c.tar"
    assert url_to_cache_name("s3://bucket/a/b/c.tar", 1) == "b/c.tar"
    assert url_to_cache_name("pipe:cat x") == "pipe%3Acat%20x"
    assert len(url_to_cache_name("pipe:" + "x" * 500)) == 128


def test_file_types(tmp_path):
    path = str(tmp_path / "x")
    cases = [(DATA, True), (b"\x1f\x8b\x08", True), (b"BZh9", True), (bytes(1024), True), (b"text", False)]
    for data, good in [*cases, (b"", False)]:
        (tmp_path / "x").write_bytes(data)
        assert check_tar_format(path) is good, data
    assert magic_filetype(path) == f"{path}: data"


def test_cleanup_of_a_directory(tmp_path, capfd):
    for i in range(5):
        (tmp_path / f"{i}").write_bytes(bytes(100))
        os.utime(tmp_path / f"{i}", (i, i))
    (tmp_path / ".part").write_bytes(bytes(1000))
    (tmp_path / "0.temp123").write_bytes(bytes(1000))
    cleaner = LRUCleanup(cache_size=250, verbose=True, interval=1000)
    cleaner.cleanup()
    cleaner.set_cache_dir(tmp_path)
    cleaner.cleanup()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part", "0.temp123", "3", "4"]
    assert capfd.readouterr().err.count("# deleting") == 3
    (tmp_path / "5").write_bytes(bytes(1000))
    cleaner.cleanup()
    assert (tmp_path / "5").exists()  # the interval has not passed
    by_name = LRUCleanup(tmp_path, 1100, keyfn=lambda path: -int(os.path.basename(path)), interval=None)
    by_name.cleanup()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part", "0.temp123", "3", "4"]
    assert last_used(tmp_path / "4") == 4


def test_cleanup_of_a_directory_of_downloads(tmp_path, remote):
    directory, _ = remote
    (directory / "a.tar").write_bytes(DATA)
    cache = FileCache(tmp_path / "cache")
    path = cache.get_file("remote://a.tar")
    (tmp_path / "cache" / "of the user").write_bytes(bytes(10_000))
    LRUCleanup(tmp_path / "cache", 100).cleanup()
    assert not os.path.exists(path)
    assert (tmp_path / "cache" / "of the user").exists()


def test_download(tmp_path, remote, caplog):
    directory, _ = remote
    (directory / "a.tar").write_bytes(DATA)
    with caplog.at_level("INFO"):
        download("remote://a.tar", tmp_path / "copy.tar", chunk_size=100, verbose=True)
    assert (tmp_path / "copy.tar").read_bytes() == DATA
    assert "copy.tar" in caplog.text
