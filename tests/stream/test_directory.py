"""A directory as a queue of shards."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tarmac.webdataset as wds
from harness.shards import plain
from harness.waiting import FOREVER, TIMEOUT, FakeClock
from tarmac.errors import NotFound, Truncated, UsageError
from tarmac.stream.shards import directory
from tarmac.stream.shards.directory import DirectoryShardList
from tarmac.stream.shards.split import split_by_worker
from tarmac.stream.shuffle import ShardShuffle


@pytest.fixture
def queue(tmp_path):
    for name in ("a.tar", "b.tgz", "c.tar.tgz", "ignored.txt"):
        (tmp_path / name).write_text(name)
    return tmp_path


def names(path):
    return sorted(os.listdir(path))


def read_all(shards):
    return [Path(shard["url"]).read_text() for shard in shards]


def test_issue_415_the_default_pattern_has_braces(queue):
    """Issue 415: the default pattern matched nothing."""
    assert sorted(read_all(DirectoryShardList(f"{queue}/", poll=None, mode="unlink"))) == [
        "a.tar",
        "b.tgz",
        "c.tar.tgz",
    ]
    assert names(queue) == ["ignored.txt"]


def test_each_shard_is_claimed_while_it_is_read(queue):
    stream = iter(DirectoryShardList(queue, select="oldest", mode="keep", poll=None))
    os.utime(queue / "c.tar.tgz", (1, 1))
    shard = next(stream)
    assert shard == {"url": f"{queue}/c.tar.tgz._{os.getpid()}_", "claimed": True}
    assert names(queue) == ["a.tar", "b.tgz", f"c.tar.tgz._{os.getpid()}_", "ignored.txt"]
    next(stream)
    assert "c.tar.tgz._done_" in names(queue)
    stream.close()


@pytest.mark.parametrize("mode", ["resample", None])
def test_put_back_and_read_again(queue, mode):
    """The webdataset library passed mode=None, and never released claimed shards."""
    stream = iter(DirectoryShardList(queue, mode=mode))
    seen = [os.path.basename(next(stream)["url"]).partition("._")[0] for _ in range(30)]
    assert set(seen) == {"a.tar", "b.tgz", "c.tar.tgz"}
    stream.close()
    assert names(queue) == ["a.tar", "b.tgz", "c.tar.tgz", "ignored.txt"]


@pytest.mark.parametrize("mode", ["resample", "unlink", "keep"])
def test_a_shard_that_may_not_have_been_read_to_its_end_is_put_back(queue, mode):
    stream = iter(DirectoryShardList(queue, mode=mode))
    next(stream)
    stream.close()
    assert names(queue) == ["a.tar", "b.tgz", "c.tar.tgz", "ignored.txt"]
    assert list(stream) == []


@pytest.mark.parametrize("mode", ["resample", "unlink", "keep"])
def test_the_path_of_a_dropped_iterator_stays_until_the_next_is_taken(queue, tmp_path_factory, mode):
    """As with the webdataset library, `next(iter(shards))` gives a file to work with."""
    path = str(next(iter(DirectoryShardList(queue, mode=mode, select="oldest")))["url"])
    gc.collect()
    assert os.path.exists(path)
    other = tmp_path_factory.mktemp("other")
    (other / "x.tar").touch()
    another = iter(DirectoryShardList(other))
    next(another)
    assert os.path.exists(path)
    taken = iter(DirectoryShardList(queue, mode=mode, select="oldest"))
    assert next(taken)["url"] == path
    held = next(iter(DirectoryShardList(queue, mode=mode)))["url"]
    assert os.path.exists(path)  # its iterator is in use
    taken.close()
    another.close()
    assert not os.path.exists(path)
    assert os.path.exists(held)
    directory._put_back_all()
    assert names(queue) == ["a.tar", "b.tgz", "c.tar.tgz", "ignored.txt"]


def test_a_process_puts_its_shards_back_when_it_exits(queue):
    program = (
        "import os, sys, tarmac.webdataset as wds; "
        "path = next(iter(wds.DirectoryShardList(sys.argv[1])))['url']; print(os.path.exists(path))"
    )
    printed = subprocess.run([sys.executable, "-c", program, queue], capture_output=True, check=True)
    assert printed.stdout.split() == [b"True"]
    assert names(queue) == ["a.tar", "b.tgz", "c.tar.tgz", "ignored.txt"]


def test_a_forked_process_leaves_claims_to_its_parent(queue):
    path = next(iter(DirectoryShardList(queue)))["url"]
    process = multiprocessing.get_context("fork").Process(target=directory._put_back_all)
    process.start()
    process.join()
    process.close()
    assert os.path.exists(path)
    directory._put_back_all()


def test_a_pipeline_that_is_left_puts_its_shard_back(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain([("1.txt", b""), ("2.txt", b"")]))
    assert next(iter(wds.WebDataset(f"{tmp_path}/", shardshuffle=False)))["__key__"] == "1"
    assert names(tmp_path) == ["a.tar"]
    (tmp_path / "a.tar").write_text("damaged")
    with pytest.raises(Truncated):
        next(iter(wds.WebDataset(f"{tmp_path}/", shardshuffle=False)))
    assert names(tmp_path) == ["a.tar"]


def claim_and_wait(path, ready):
    stream = iter(DirectoryShardList(path, mode="unlink"))
    next(stream)
    ready.set()
    time.sleep(FOREVER)


def test_shards_of_a_dead_reader_are_read_by_another(queue):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=claim_and_wait, args=(queue, ready))
    process.start()
    assert ready.wait(TIMEOUT)
    [claimed] = [name for name in names(queue) if name.endswith(f"._{process.pid}_")]
    assert len(read_all(DirectoryShardList(queue, poll=None, mode="keep"))) == 2
    assert claimed in names(queue)
    process.kill()
    process.join()
    process.close()
    assert len(read_all(DirectoryShardList(queue, poll=None, mode="keep"))) == 1
    assert not any(name.endswith("_") and "_done_" not in name for name in names(queue))


def test_a_claim_of_a_dead_process_with_our_process_id(queue):
    """In containers, process ids repeat."""
    os.rename(queue / "a.tar", queue / f"a.tar._{os.getpid()}_")
    assert "a.tar" in read_all(DirectoryShardList(queue, poll=None, mode="unlink"))


def test_claims_without_locks(queue, monkeypatch):
    monkeypatch.setattr(directory, "try_lock", lambda fd: False)
    os.rename(queue / "a.tar", queue / "a.tar._4194304999_")  # no such process
    os.rename(queue / "b.tgz", queue / f"b.tgz._{os.getppid()}_")
    assert sorted(read_all(DirectoryShardList(queue, poll=None, mode="unlink"))) == ["a.tar", "c.tar.tgz"]
    assert names(queue) == [f"b.tgz._{os.getppid()}_", "ignored.txt"]


def test_a_new_shard_under_the_name_of_a_claimed_one_is_not_lost(queue):
    stream = iter(DirectoryShardList(queue, pattern="a.tar", poll=None, mode="resample"))
    next(stream)
    (queue / "a.tar").write_text("new")
    assert read_all([next(stream)]) != []
    stream.close()
    contents = {(queue / name).read_text() for name in names(queue) if name.startswith("a.tar")}
    assert contents == {"a.tar", "new"}


def take_all(path, results):
    results.put(read_all(DirectoryShardList(path, poll=None, mode="unlink")))


def test_concurrent_readers_do_not_overlap(tmp_path):
    for number in range(60):
        (tmp_path / f"{number}.tar").write_text(str(number))
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    readers = [context.Process(target=take_all, args=(tmp_path, results)) for _ in range(3)]
    for reader in readers:
        reader.start()
    parts = [results.get() for _ in readers]
    for reader in readers:
        reader.join()
        reader.close()
    results.close()
    assert sorted(int(text) for part in parts for text in part) == list(range(60))
    assert names(tmp_path) == []


def test_fate_replaces_the_mode(queue):
    moved = queue / "moved"
    moved.mkdir()
    seen = []

    def fate(path):
        name = os.path.basename(path).partition("._")[0]
        seen.append(name)
        if name != "a.tar":
            os.rename(path, moved / name)
        else:
            os.utime(path)

    stream = iter(
        DirectoryShardList(queue, mode="unlink", select="oldest", fate=fate, timeout=TIMEOUT, poll=0.01)
    )
    for name in ("b.tgz", "c.tar.tgz"):
        os.utime(queue / name, (1, 1))
    for _ in range(4):
        next(stream)
    stream.close()
    assert seen == ["b.tgz", "c.tar.tgz", "a.tar"]
    assert names(moved) == ["b.tgz", "c.tar.tgz"]
    assert names(queue) == ["a.tar", "ignored.txt", "moved"]


def test_timeout(tmp_path, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(directory, "time", clock)
    assert list(DirectoryShardList(tmp_path, poll=0.25, timeout=1)) == []
    assert clock.slept == [0.25] * 4
    assert list(DirectoryShardList(tmp_path, poll=None)) == []
    assert len(clock.slept) == 4


def test_shards_added_later(tmp_path, monkeypatch):
    clock = FakeClock()

    def sleep(seconds):
        clock.now += seconds
        if clock.now == 1008:
            (tmp_path / "late.tar").write_text("late")

    monkeypatch.setattr(clock, "sleep", sleep)
    monkeypatch.setattr(directory, "time", clock)
    stream = iter(DirectoryShardList(tmp_path, poll=1, mode="unlink", timeout=30))
    assert read_all([next(stream)]) == ["late"]
    assert clock.now == 1008
    stream.close()


def test_splitters_and_shuffles_keep_claimed_shards(queue, monkeypatch):
    """A stage that claims ahead would delete shards before they are read."""
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "2")
    stream = split_by_worker(ShardShuffle(100)(DirectoryShardList(queue, poll=None, mode="unlink")))
    assert sorted(read_all(stream)) == ["a.tar", "b.tgz", "c.tar.tgz"]


def test_names_with_wildcards_and_directories(tmp_path):
    folder = tmp_path / "[odd]*"
    folder.mkdir()
    (folder / "a.tar").write_text("a")
    (folder / "dir.tar").mkdir()
    assert read_all(DirectoryShardList(folder, poll=None, mode="unlink")) == ["a"]


def test_every_way_to_name_a_local_directory(queue, monkeypatch):
    monkeypatch.setenv("HOME", str(queue.parent))
    for name in (queue, str(queue), f"file:{queue}", f"file://{queue}/", f"~/{queue.name}"):
        assert len(read_all(DirectoryShardList(name, poll=None, mode="keep"))) == 3
        for path in queue.iterdir():
            path.rename(str(path).removesuffix("._done_"))


def test_invalid_arguments(tmp_path):
    with pytest.raises(NotFound, match="none"):
        DirectoryShardList(tmp_path / "none")
    with pytest.raises(UsageError, match="`mode`"):
        DirectoryShardList(tmp_path, mode="delete")
    with pytest.raises(UsageError, match="`select`"):
        DirectoryShardList(tmp_path, select="newest")
    with pytest.raises(UsageError, match="`poll`"):
        DirectoryShardList(tmp_path, poll=-1)


def test_picklable(queue):
    shards = pickle.loads(pickle.dumps(DirectoryShardList(queue, poll=None, mode="unlink")))
    assert len(list(shards)) == 3


def test_a_read_only_directory_raises(queue, monkeypatch):
    def refuse(*names):
        raise PermissionError(13, "no", names[0])

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(PermissionError):
        next(iter(DirectoryShardList(queue, poll=None)))


def test_shards_that_other_readers_take_or_replace(queue, monkeypatch):
    """Anything may happen between listing and claiming."""
    rename = os.rename

    def gone(one, other):
        os.unlink(one)
        rename(one, other)

    def replaced(one, other):
        os.rename = rename
        os.replace(queue / "ignored.txt", one)
        rename(one, other)

    monkeypatch.setattr(os, "rename", gone)
    assert directory._claim(str(queue / "b.tgz"), locks=True) is None
    monkeypatch.setattr(os, "rename", replaced)
    assert directory._claim(str(queue / "a.tar"), locks=True) is None
    assert directory._claim(str(queue / "b.tgz"), locks=True) is None
    monkeypatch.setattr(directory, "try_lock", lambda fd: False)
    assert directory._claim(str(queue / "c.tar.tgz"), locks=True) is None
    monkeypatch.undo()
    assert names(queue) == ["a.tar", "c.tar.tgz"]
    assert (queue / "a.tar").read_text() == "ignored.txt"
    assert directory._modified(str(queue / "none")) == float("inf")
    assert not directory._locks_work(str(queue / "none"))


def test_processes_of_other_users_are_running():
    assert directory._is_running(1)
    assert directory._is_running(os.getpid())
    assert not directory._is_running(2**40)
