"""Shards are opened once, on first use, in limited number, from several threads and processes."""

from __future__ import annotations

import os
import pickle
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import tarmac
from harness.datasets import write_shards
from harness.folder import folder
from harness.shards import plain
from harness.waiting import TIMEOUT, gone
from tarmac.errors import IndexDamaged, TarmacError, WriteError
from tarmac.exact import shardset
from tarmac.exact.shardset import OpenOptions, ShardSet, find_or_make_index
from tarmac.indexing.build import IndexOptions, manifest_of
from tarmac.indexing.manifest import Manifest, Shard
from tarmac.storage import mapped


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def manifest(tmp_path):
    return manifest_of(write_shards(tmp_path, [2] * 6))


def open_files(root):
    links = (os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd"))
    names = [os.readlink(link) for link in links if os.path.lexists(link)]
    return {name for name in names if name.startswith(str(root))}


def mapped_files(root):
    with open("/proc/self/maps") as file:
        names = {line.rstrip("\n").partition("/")[2] for line in file}
    return {name for name in names if f"/{name}".startswith(str(root)) and name.endswith(".tar")}


def test_shards_are_opened_when_needed_and_kept(manifest, tmp_path):
    shards = ShardSet(manifest, OpenOptions(open_shards=2))
    assert not open_files(tmp_path)
    first = shards.open(0)
    assert shards.open(0) is first
    assert shards.sidecar(0) is first.sidecar
    for number in range(6):
        shards.open(number)
    assert len(mapped_files(tmp_path)) == 3  # two, and `first`
    assert first.sample(1)["cls"] == b"1"
    del first
    assert len(mapped_files(tmp_path)) == 2
    shards.close()
    assert not mapped_files(tmp_path)
    assert not open_files(tmp_path)
    assert shards.open(3).sample(0)["cls"] == b"6"
    shards.close()


def test_shards_in_memory_stay_and_need_no_files(manifest, tmp_path):
    shards = ShardSet(manifest, OpenOptions(open_shards=2, in_memory=True))
    kept = [shards.open(number) for number in range(6)]
    assert [shards.open(number) for number in range(6)] == kept
    assert not open_files(tmp_path)
    for name in os.listdir(tmp_path):
        if name.endswith(".tar"):
            (tmp_path / name).unlink()
    assert [shard.sample(0)["cls"] for shard in kept] == [b"%d" % i for i in range(0, 12, 2)]
    shards.after_fork()
    assert shards.open(1) is kept[1]


def test_a_shard_is_opened_once_and_others_in_parallel(manifest, monkeypatch):
    opened, real = [], shardset.stat
    both = threading.Barrier(2, timeout=TIMEOUT)

    def slow(url, options):
        opened.append(url)
        both.wait()  # both shards must be opened at the same time
        return real(url, options)

    monkeypatch.setattr(shardset, "stat", slow)
    shards = ShardSet(manifest, OpenOptions())
    with ThreadPoolExecutor(8) as pool:
        opened_shards = list(pool.map(shards.open, [0, 1] * 4))
    assert sorted(opened) == [manifest.shards[0].url, manifest.shards[1].url]
    assert len(set(map(id, opened_shards))) == 2
    shards.close()


def test_a_failure_is_not_cached(manifest, monkeypatch):
    shards, real = ShardSet(manifest, OpenOptions()), shardset.stat

    def failing(url, options):
        raise TarmacError("not now.")

    monkeypatch.setattr(shardset, "stat", failing)
    with pytest.raises(TarmacError, match="not now"):
        shards.open(0)
    monkeypatch.setattr(shardset, "stat", real)
    assert len(shards.open(0)) == 2
    shards.close()


@pytest.mark.processes
def test_a_fork_while_a_thread_opens_a_shard_does_not_hang(manifest, monkeypatch):
    shards, real = ShardSet(manifest, OpenOptions()), shardset.stat
    begun, go = threading.Event(), threading.Event()

    def slow(url, options):
        begun.set()
        go.wait(TIMEOUT)
        return real(url, options)

    monkeypatch.setattr(shardset, "stat", slow)
    thread = threading.Thread(target=shards.open, args=(0,))
    thread.start()
    assert begun.wait(TIMEOUT)
    child = os.fork()
    if not child:
        go.set()
        os._exit(7 if shards.open(0).sample(0)["cls"] == b"0" else 1)
    if not gone([child]):
        os.kill(child, 9)
    status = os.waitpid(child, 0)[1]
    go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 7
    shards.close()


def test_pickles_have_nothing_open(manifest):
    shards = ShardSet(manifest, OpenOptions(fields=frozenset(["cls"])))
    size = len(pickle.dumps(shards))
    shards.open(0)
    assert len(pickle.dumps(shards)) == size
    copy = pickle.loads(pickle.dumps(shards))
    assert list(copy.open(0).sample(0)) == ["__key__", "__url__", "cls"]
    copy.close()
    shards.close()


# Where indexes are stored


def test_an_index_is_written_beside_the_shard(tmp_path, home):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    sidecar, location = find_or_make_index(str(path), IndexOptions())
    assert (len(sidecar), location) == (3, f"{path}.arrow")
    written = (tmp_path / "a.tar.arrow").stat().st_mtime_ns
    assert find_or_make_index(str(path), IndexOptions())[1] == location
    assert (tmp_path / "a.tar.arrow").stat().st_mtime_ns == written
    assert not home.exists()
    path.write_bytes(plain([("z.x", b"")]))
    assert len(find_or_make_index(str(path), IndexOptions())[0]) == 1  # of the current shard


def test_an_index_is_written_to_the_home_directory_if_necessary(tmp_path, home):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    (tmp_path / "a.tar.arrow").mkdir()  # like a read-only directory, to which root could write
    sidecar, location = find_or_make_index(str(path), IndexOptions())
    assert len(sidecar) == 3
    assert location.startswith(str(home / "index"))
    assert location.endswith("-a.tar.arrow")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/a.tar").write_bytes(plain([("z.x", b"")]))
    (tmp_path / "b/a.tar.arrow").mkdir()
    assert find_or_make_index(str(tmp_path / "b/a.tar"), IndexOptions())[1] != location
    assert find_or_make_index(str(path), IndexOptions())[1] == location
    assert list(tarmac.Dataset(path)) == list(tarmac.read(path))


def test_no_directory_for_an_index(tmp_path, home):
    path = tmp_path / "a.tar"
    path.write_bytes(plain())
    (tmp_path / "a.tar.arrow").mkdir()
    home.write_text("in the way")
    with pytest.raises(WriteError, match="TARMAC_HOME"):
        find_or_make_index(str(path), IndexOptions())


def test_manifests_without_indexes(tmp_path):
    urls = write_shards(tmp_path, [2, 3], index=False)
    manifest = Manifest([Shard(url, count) for url, count in zip(urls, [2, 3], strict=True)])
    shards = ShardSet(manifest, OpenOptions())
    assert [len(shards.open(number)) for number in range(2)] == [2, 3]
    assert (tmp_path / "s001.tar.arrow").exists()
    shards.close()
    with pytest.raises(IndexDamaged, match=r"s000\.tar.*4.*2"):
        ShardSet(Manifest([Shard(urls[0], 4)]), OpenOptions()).sidecar(0)


LARGE = 40_000


def test_many_shards_stay_open_within_the_limit_of_descriptors(tmp_path, monkeypatch):
    monkeypatch.setattr("tarmac.storage.mapped.max_descriptors", lambda: 40)
    dataset = tarmac.Dataset(write_shards(tmp_path, [2] * 60, size=LARGE))
    opened, real = [], shardset.stat
    monkeypatch.setattr(shardset, "stat", lambda url, *options: opened.append(url) or real(url, *options))
    for number in (0, 1):  # the second time, no shard is opened again
        for shard in range(60):
            assert len(dataset[2 * shard + number]["txt"]) == LARGE
            assert len(open_files(tmp_path)) <= 10
    assert len(opened) == 60
    assert len(mapped_files(tmp_path)) == 60
    dataset.close()


def test_a_shard_that_is_replaced_or_removed_keeps_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("tarmac.storage.mapped.max_descriptors", lambda: 4)
    first, second, third = write_shards(tmp_path, [2] * 3, size=LARGE)
    dataset = tarmac.Dataset([first, second, third])
    before = [dataset[number] for number in range(6)]  # each read closes the descriptor of the shard before
    os.unlink(first)
    (tmp_path / "new.tar").write_bytes(bytes(os.path.getsize(second)))
    os.replace(tmp_path / "new.tar", second)
    assert [dataset[number] for number in range(6)] == before
    dataset.close()


def test_files_that_cannot_be_mapped_are_read(tmp_path, monkeypatch):
    urls = write_shards(tmp_path, [5, 5], size=LARGE)
    expected = list(tarmac.Dataset(urls))
    real = mapped.map_file
    monkeypatch.setattr(mapped, "map_file", lambda fd, size: None if size > LARGE else real(fd, size))
    assert list(tarmac.Dataset(urls)) == expected


@pytest.mark.processes
def test_shards_of_a_cache_stay_open_without_descriptors(tmp_path, monkeypatch):
    monkeypatch.setattr("tarmac.storage.mapped.max_descriptors", lambda: 40)
    (tmp_path / "served").mkdir()
    urls, log = write_shards(tmp_path / "served", [2] * 60, size=LARGE), []
    tarmac.index(urls, str(tmp_path / "served" / "m.json"))
    cache = tarmac.Cache(tmp_path / "cache")
    with folder(tmp_path / "served", log=log) as url:
        dataset = tarmac.Dataset(f"{url}/m.json", cache=cache)
        for number in (0, 1):  # the second time, no shard is opened again
            for shard in range(60):
                assert len(dataset[2 * shard + number]["txt"]) == LARGE
                assert len(open_files(tmp_path / "cache")) <= 10
        requests = Counter((method, path) for method, path, _ in log if path.endswith(".tar"))
        assert len(requests) == 120  # status and content of each
        assert set(requests.values()) == {1}
    assert len(mapped_files(tmp_path / "cache")) == 60
    dataset.close()


@pytest.mark.processes
def test_shards_of_a_cache_are_not_evicted_while_they_are_open(tmp_path):
    (tmp_path / "served").mkdir()
    urls = write_shards(tmp_path / "served", [2] * 3, size=100)
    tarmac.index(urls, str(tmp_path / "served" / "m.json"))
    with folder(tmp_path / "served") as url:
        dataset = tarmac.Dataset(f"{url}/m.json", cache=tmp_path / "cache")
        list(dataset)
    assert not open_files(tmp_path / "cache")
    small = tarmac.Cache(tmp_path / "cache", max_bytes=1)
    names = [entry.name for entry in small.entries()]
    assert len(names) == 3
    assert small.clean() == 0
    assert not any(small.remove(name) for name in names)
    dataset.close()
    small.clean()
    assert not small.entries()


def test_retired_shards_are_closed_first(manifest):
    shards = ShardSet(manifest, OpenOptions(open_shards=3))
    kept = [shards.open(number) for number in range(3)]
    shards.retire(2)
    shards.open(3)
    assert shards.open(0) is kept[0]
    assert shards.open(1) is kept[1]
    assert shards.open(2) is not kept[2]
