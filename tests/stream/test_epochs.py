"""All workers count the same epochs, whatever starts them and however long they live."""

from __future__ import annotations

import copy
import gc
import glob
import multiprocessing
import os
import pickle
import secrets
import tempfile
from multiprocessing import forkserver, resource_tracker, synchronize, util

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.waiting import until
from harness.workers import Numbered, Resuming
from tarmac.errors import UsageError
from tarmac.steps.stage import Epoch
from tarmac.stream import epochs
from tarmac.stream.epochs import EpochCounter

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def files():
    """Return the files of counters that tests of this process created."""
    return glob.glob(os.path.join(tempfile.gettempdir(), f"tarmac-epochs-test{os.getpid()}-*"))


def semaphores():
    """Return the semaphores of this process that their owners have yet to remove."""
    waiting = list(util._finalizer_registry.values())
    return [each for each in waiting if each._callback is synchronize.SemLock._cleanup]


@pytest.fixture(autouse=True)
def no_leftovers(monkeypatch):
    """Check that no file is left, and stop the helper processes of multiprocessing."""
    real = secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", lambda size=None: f"test{os.getpid()}-{real(size)}")
    yield
    gc.collect()
    assert files() == []
    # The tracker removes leftover semaphores when it stops; their owners must have removed theirs before.
    until(lambda: gc.collect() is None or not semaphores(), 30)
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()


def loader(dataset, workers, method=None, **options):
    from torch.utils.data import DataLoader

    context = multiprocessing.get_context(method) if workers and method else None
    return DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=context, **options
    )


def runs(loader, count):
    """Return the epochs of the workers in each of `count` runs, as sorted pairs of worker and epoch."""
    return [sorted(map(tuple, loader)) for _ in range(count)]


def expected(workers, numbers):
    return [[(worker, number) for worker in range(max(workers, 1))] for number in numbers]


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_agree_when_forked(workers, persistent):
    """Issues 172, 190 and PR 502 of webdataset: copies in restarted workers counted from 0 each time."""
    numbered = loader(Numbered(), workers, "fork", persistent_workers=persistent and workers > 0)
    assert runs(numbered, 3) == expected(workers, [0, 1, 2])


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_agree_in_new_interpreters(method, persistent):
    numbered = loader(Numbered(), 2, method, persistent_workers=persistent)
    assert runs(numbered, 2) == expected(2, [0, 1])
    del numbered


def test_main_process_and_workers_continue_counting():
    dataset = Numbered()
    assert list(dataset) == [(0, 0)]
    assert runs(loader(dataset, 2, "fork"), 2) == expected(2, [1, 2])
    assert list(dataset) == [(0, 3)]
    assert runs(loader(dataset, 3, "fork"), 1) == expected(3, [4])


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_in_the_main_process_holds_for_all_workers(persistent):
    dataset = Numbered()
    dataset.set_epoch(5)
    numbered = loader(dataset, 2, "fork", persistent_workers=persistent)
    assert runs(numbered, 2) == expected(2, [5, 6])
    dataset.set_epoch(3)
    assert runs(numbered, 2) == expected(2, [3, 4])


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_resume_continue_counting(persistent):
    dataset = Resuming()
    numbered = loader(dataset, 2, "fork", persistent_workers=persistent)
    assert runs(numbered, 1) == expected(2, [7])
    if not persistent:
        dataset.resumed = True
        assert runs(numbered, 2) == expected(2, [8, 9])


def test_workers_that_repeat_agree_in_the_next_run():
    numbered = loader(Numbered(repeats=3), 2, "fork")
    first, second = runs(numbered, 2)
    assert first == [(w, n) for w in range(2) for n in range(3)]
    assert second == [(w, n) for w in range(2) for n in range(3, 6)]


def test_seeding_torch_before_each_run():
    import torch

    numbered = loader(Numbered(), 2, "fork")
    epochs = []
    for _ in range(3):
        torch.manual_seed(0)
        epochs.append(sorted(map(tuple, numbered)))
    assert epochs == expected(2, [0, 1, 2])


def test_a_terminated_worker_does_not_fall_behind():
    counter = EpochCounter()
    assert counter.begin(0, token=11).number == 0  # worker 1 was terminated before it began
    assert counter.begin(1, token=12).number == 1
    assert counter.begin(0, token=12).number == 1
    assert counter.begin(2, token=12).number == 1


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 4), max_size=12), max_size=6))
def test_workers_of_one_run_get_the_same_numbers(runs):
    counter = EpochCounter()
    largest = -1
    for token, workers in enumerate(runs):
        begun: dict[int, list[int]] = {}
        for worker in workers:
            begun.setdefault(worker, []).append(counter.begin(worker, token).number)
        first = largest + 1
        for numbers in begun.values():
            assert numbers == list(range(first, first + len(numbers)))
        largest = max([largest, *(numbers[-1] for numbers in begun.values())])
    assert counter.last == largest


def test_other_processes_count_on_their_own():
    """Two processes that each read the whole dataset both begin with epoch 0."""
    dataset = Numbered()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    for _ in range(2):
        process = context.Process(target=lambda: queue.put(list(dataset)))
        process.start()
        process.join()
        process.close()
    assert [queue.get(), queue.get()] == [[(0, 0)], [(0, 0)]]
    queue.close()


def test_a_single_process_needs_no_file():
    counter = EpochCounter()
    assert [counter.begin(0).number for _ in range(3)] == [0, 1, 2]
    assert files() == []


def test_the_file_is_removed_and_not_required(monkeypatch):
    counter = EpochCounter()
    counter.begin(0, token=1)
    [path] = files()
    assert os.stat(path).st_mode & 0o777 == 0o600
    os.unlink(path)
    assert counter.begin(0, token=2).number == 1
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert counter.begin(0, token=3).number == 2
    assert counter.begin(1, token=3).number == 2
    monkeypatch.undo()
    del counter
    gc.collect()
    assert not os.path.exists(path)


def test_counting_without_a_lock(monkeypatch):
    monkeypatch.setattr(epochs, "try_lock", lambda fd: False)
    monkeypatch.setattr(epochs, "_LOCK_TIMEOUT", 0.01)
    counter = EpochCounter()
    assert [
        counter.begin(0, token=1).number,
        counter.begin(1, token=1).number,
        counter.begin(0, token=2).number,
    ] == [0, 0, 1]


def test_copies_count_on_their_own():
    """In the webdataset library, copies of a pipeline advanced each other's epochs."""
    one = Numbered()
    list(one)
    other, deep = copy.copy(one), copy.deepcopy(one)
    assert list(one) == list(other) == list(deep) == [(0, 1)]
    assert list(one) == [(0, 2)]
    assert other.repeats == 1


def test_pickled_copies_in_one_process_count_on_their_own():
    counter = EpochCounter()
    counter.begin(0, token=1)
    other = pickle.loads(pickle.dumps(counter))
    del other
    gc.collect()
    assert counter.begin(0, token=2).number == 1


def test_set_and_last():
    counter = EpochCounter(3)
    assert counter.last == 2
    assert counter.begin(0).number == 3
    counter.set(10)
    assert counter.last == 9
    assert counter.begin(0).number == counter.last == 10
    counter.resume(Epoch(4, None), worker=0)
    assert counter.begin(0).number == 4
    assert counter.begin(0).number == 5
    with pytest.raises(UsageError, match="`epoch`"):
        counter.set(-1)


@pytest.mark.parametrize(
    "kind", ["link", "dangling link", "hard link", "another user's", "pipe", "directory"]
)
def test_a_foreign_file_is_neither_read_nor_written(tmp_path, kind):
    """Any user may create files in the temporary directory."""
    if kind == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    counter = EpochCounter()
    path, precious = epochs._path(counter._name, os.getpid()), tmp_path / "precious"
    precious.write_bytes(b"mine too" * 4)  # as long as a count
    before = precious.read_bytes()
    if kind == "link":
        os.symlink(precious, path)
    elif kind == "dangling link":
        os.symlink(tmp_path / "new", path)
    elif kind == "hard link":
        os.link(precious, path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        os.mkdir(path)
    else:
        with open(path, "wb") as file:
            file.write(before)
        os.chown(path, 60_001, 60_001)
    try:
        assert [counter.begin(0, token=5).number for _ in range(3)] == [0, 1, 2]
        assert precious.read_bytes() == before
        assert os.listdir(tmp_path) == ["precious"]
        if kind == "another user's":
            with open(path, "rb") as file:
                assert file.read() == before
    finally:
        (os.rmdir if kind == "directory" else os.unlink)(path)
