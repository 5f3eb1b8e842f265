"""Passes are counted alike by all workers, whatever starts them and however long they live."""

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

from harness.places import Numbered, Reading, Resuming
from harness.waiting import until
from tarmac.stream import epochs
from tarmac.stream.epochs import Epoch, EpochCounter

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def files():
    """The files of counters that tests of this process made."""
    return glob.glob(os.path.join(tempfile.gettempdir(), f"tarmac-epochs-test{os.getpid()}-*"))


def semaphores():
    """The semaphores of this process that are still to be removed by their owners."""
    waiting = list(util._finalizer_registry.values())
    return [each for each in waiting if each._callback is synchronize.SemLock._cleanup]


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch):
    """No file stays, and the helpers of multiprocessing that live as long as the process end here."""
    real = secrets.token_hex
    monkeypatch.setattr(secrets, "token_hex", lambda size=None: f"test{os.getpid()}-{real(size)}")
    yield
    gc.collect()
    assert files() == []
    # The tracker removes the semaphores that are left when it ends, and their owners must not find them gone.
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
    """The passes that the workers made in each of so many runs, as sorted pairs of worker and pass."""
    return [sorted(map(tuple, loader)) for _ in range(count)]


def expected(workers, passes):
    return [[(worker, number) for worker in range(max(workers, 1))] for number in passes]


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_agree_when_forked(workers, persistent):
    """Issues 172, 190 and PR 502: copies in workers that are made anew counted from 0 each time."""
    numbered = loader(Numbered(), workers, "fork", persistent_workers=persistent and workers > 0)
    assert runs(numbered, 3) == expected(workers, [0, 1, 2])


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_agree_in_fresh_interpreters(method, persistent):
    numbered = loader(Numbered(), 2, method, persistent_workers=persistent)
    assert runs(numbered, 2) == expected(2, [0, 1])
    del numbered


def test_main_process_and_workers_count_on():
    dataset = Numbered()
    assert list(dataset) == [(0, 0)]
    assert runs(loader(dataset, 2, "fork"), 2) == expected(2, [1, 2])
    assert list(dataset) == [(0, 3)]
    assert runs(loader(dataset, 3, "fork"), 1) == expected(3, [4])


@pytest.mark.parametrize("persistent", [False, True])
def test_what_the_main_process_sets_holds_for_all_workers(persistent):
    dataset = Numbered()
    dataset.set_epoch(5)
    numbered = loader(dataset, 2, "fork", persistent_workers=persistent)
    assert runs(numbered, 2) == expected(2, [5, 6])
    dataset.set_epoch(3)
    assert runs(numbered, 2) == expected(2, [3, 4])


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_resume_count_on(persistent):
    dataset = Resuming()
    numbered = loader(dataset, 2, "fork", persistent_workers=persistent)
    assert runs(numbered, 1) == expected(2, [7])
    if not persistent:
        dataset.resumed = True
        assert runs(numbered, 2) == expected(2, [8, 9])


def test_workers_that_repeat_agree_again_in_the_next_run():
    numbered = loader(Numbered(repeats=3), 2, "fork")
    first, second = runs(numbered, 2)
    assert first == [(w, n) for w in range(2) for n in range(3)]
    assert second == [(w, n) for w in range(2) for n in range(3, 6)]


def test_seeding_torch_before_each_run_does_no_harm():
    import torch

    numbered = loader(Numbered(), 2, "fork")
    found = []
    for _ in range(3):
        torch.manual_seed(0)
        found.append(sorted(map(tuple, numbered)))
    assert found == expected(2, [0, 1, 2])


def test_a_worker_that_was_ended_too_early_is_not_left_behind():
    counter = EpochCounter()
    assert counter.next(0, token=11) == 0  # worker 1 was ended before it began
    assert counter.next(1, token=12) == 1
    assert counter.next(0, token=12) == 1
    assert counter.next(2, token=12) == 1


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 4), max_size=12), max_size=6))
def test_workers_of_one_run_get_the_same_numbers(runs):
    counter = EpochCounter()
    largest = -1
    for token, workers in enumerate(runs):
        made: dict[int, list[int]] = {}
        for worker in workers:
            made.setdefault(worker, []).append(counter.next(worker, token))
        first = largest + 1
        for numbers in made.values():
            assert numbers == list(range(first, first + len(numbers)))
        largest = max([largest, *(numbers[-1] for numbers in made.values())])
    assert counter.last == largest


def test_processes_that_are_no_workers_count_for_themselves():
    """Two processes that each read the dataset on their own both begin with pass 0."""
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
    assert [counter.next(0) for _ in range(3)] == [0, 1, 2]
    assert files() == []


def test_the_file_goes_with_the_counter_and_counting_goes_on_without_it(monkeypatch):
    counter = EpochCounter()
    counter.next(0, token=1)
    [path] = files()
    assert os.stat(path).st_mode & 0o777 == 0o600
    os.unlink(path)
    assert counter.next(0, token=2) == 1
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert counter.next(0, token=3) == 2
    assert counter.next(1, token=3) == 2
    monkeypatch.undo()
    del counter
    gc.collect()
    assert not os.path.exists(path)


def test_a_lock_that_cannot_be_had_is_no_end(monkeypatch):
    monkeypatch.setattr(epochs, "try_lock", lambda fd: False)
    monkeypatch.setattr(epochs, "_LOCK_TIMEOUT", 0.01)
    counter = EpochCounter()
    assert [counter.next(0, token=1), counter.next(1, token=1), counter.next(0, token=2)] == [0, 0, 1]


def test_issue_compose_shares_stages():
    """research §4: copies of a pipeline advanced each other's epochs."""
    one = Numbered()
    list(one)
    other, deep = copy.copy(one), copy.deepcopy(one)
    assert list(one) == list(other) == list(deep) == [(0, 1)]
    assert list(one) == [(0, 2)]
    assert other.repeats == 1


def test_copies_by_pickle_in_one_process_are_their_own():
    counter = EpochCounter()
    counter.next(0, token=1)
    other = pickle.loads(pickle.dumps(counter))
    del other
    gc.collect()
    assert counter.next(0, token=2) == 1


def test_set_and_last():
    counter = EpochCounter(3)
    assert counter.last == 2
    assert counter.next(0) == 3
    counter.set(10)
    assert counter.last == 9
    assert counter.next(0) == counter.last == 10
    counter.resume(Epoch(4, None), worker=0)
    assert counter.next(0) == 4
    assert counter.next(0) == 5
    with pytest.raises(ValueError, match="from 0"):
        counter.set(-1)


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("shards", [1, 3, 10])
def test_workers_made_anew_read_each_sample_once_in_each_epoch(workers, shards):
    """If workers disagreed on the pass, they would deal out different permutations."""
    reading = loader(Reading(shards), workers, "fork")
    epochs = [list(map(tuple, reading)) for _ in range(4)]
    for epoch in epochs:
        assert sorted(epoch) == sorted((f"http://x/{s}.tar", n) for s in range(shards) for n in range(3))
    if shards == 10:
        assert len(set(map(tuple, epochs))) == 4


@pytest.mark.parametrize(
    "kind", ["link", "dangling link", "hard link", "another user's", "pipe", "directory"]
)
def test_a_file_that_somebody_put_there_is_not_counted_in(tmp_path, kind):
    """The files lie where all users may put some; one that is not ours is neither read nor written."""
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
        assert [counter.next(0, token=5) for _ in range(3)] == [0, 1, 2]
        assert precious.read_bytes() == before
        assert os.listdir(tmp_path) == ["precious"]
        if kind == "another user's":
            with open(path, "rb") as file:
                assert file.read() == before
    finally:
        (os.rmdir if kind == "directory" else os.unlink)(path)
