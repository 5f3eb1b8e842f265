"""Several processes read one dataset: every sample once; dead workers are noticed, and none is left running."""

from __future__ import annotations

import itertools
import logging
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
import torch

import tarmac
import tarmac.webdataset as wds
from harness.shards import plain
from harness.waiting import FOREVER, gone
from tarmac.compat.webdataset import multi as multiloader
from tarmac.compat.webdataset.multi import MultiLoader, WorkerFailed
from tarmac.errors import NotPicklable, Truncated
from tarmac.runtime.worker_info import current_worker_info
from tarmac.stream.webdataset import WebDataset

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

ALL = [f"{number}{i}" for number in range(4) for i in range(6)]


@pytest.fixture
def shards(tmp_path):
    for number in range(4):
        files = [(f"{number}{i}.cls", b"%d" % i) for i in range(6)]
        (tmp_path / f"x-{number}.tar").write_bytes(plain(files))
    return str(tmp_path / "x-{0..3}.tar")


def key_of(sample):
    return sample["__key__"]


class Steps:
    """Yield the results of a function for 0, 1, 2, …, and the number of the worker."""

    def __init__(self, step, count=10):
        self.step, self.count = step, count

    def __iter__(self):
        return (self.step(number, current_worker_info().worker) for number in range(self.count))


def both(number, worker):
    return number, worker


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_every_sample_once_and_each_epoch_in_another_order(shards, workers):
    loader = MultiLoader(WebDataset(shards, shardshuffle=10).shuffle(5).map(key_of), workers)
    epochs = [list(loader) for _ in range(3)]
    assert all(sorted(one) == ALL for one in epochs)
    assert len({tuple(one) for one in epochs}) == 3
    again = MultiLoader(WebDataset(shards, shardshuffle=10).shuffle(5).map(key_of), workers)
    assert [list(again) for _ in range(3)] == epochs


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_start_methods(shards, method):
    dataset = WebDataset(shards, shardshuffle=10).decode().to_tuple("__key__", "cls").batched(4)
    loader = MultiLoader(dataset, 2, start_method=method)
    assert sorted(key for keys, _ in loader for key in keys) == ALL


def test_the_environment_of_the_parent_does_not_affect_its_workers(monkeypatch):
    monkeypatch.setenv("WORKER", "5")
    monkeypatch.setenv("NUM_WORKERS", "6")
    assert list(MultiLoader(Steps(both, 2), 3)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_set_epoch(shards):
    def make():
        return MultiLoader(WebDataset(shards, shardshuffle=10).map(key_of), 2)

    loader, other = make(), make()
    second = [list(loader) for _ in range(2)][1]
    other.set_epoch(1)
    assert list(other) == second
    MultiLoader([1]).set_epoch(3)


def test_in_a_pipeline(shards):
    pipeline = tarmac.DataPipeline(MultiLoader(WebDataset(shards).map(key_of), 2), wds.batched(5, None))
    assert sorted(itertools.chain.from_iterable(pipeline)) == ALL


def tensor(number, worker):
    return torch.full((1000,), number)


def test_tensors_outlive_their_workers():
    assert [int(result[0]) for result in list(MultiLoader(Steps(tensor, 3), 2))] == [0, 0, 1, 1, 2, 2]


def augmented(number, worker):
    return random.random(), np.random.random(), float(torch.rand(()))


def test_random_numbers_differ_between_workers_and_are_reproducible():
    def numbers(seed):
        random.seed(seed)
        return [list(MultiLoader(Steps(augmented, 2), 3)) for _ in range(2)]

    result = [value for one in numbers(1) for triple in one for value in triple]
    assert len(set(result)) == len(result) == 36
    assert numbers(1) == numbers(1) != numbers(2)


def fail_at_three(number, worker):
    if (number, worker) == (3, 1):
        raise KeyError("three")
    return number


def test_an_error_of_a_worker_is_raised_in_order():
    items = iter(MultiLoader(Steps(fail_at_three), 2))
    assert list(itertools.islice(items, 7)) == [0, 0, 1, 1, 2, 2, 3]
    with pytest.raises(KeyError, match="three") as caught:
        next(items)
    assert "in worker 1" in caught.value.__notes__[0]
    assert "fail_at_three" in caught.value.__notes__[0]


def test_errors_keep_their_location(shards, tmp_path):
    path = tmp_path / "x-2.tar"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(Truncated, match=r"x-2\.tar @ 0x"):
        list(MultiLoader(WebDataset(shards), 2))


class Awkward(Exception):
    """An error that can be pickled but not unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")

    def __reduce__(self):
        return Awkward, self.args


def fail_awkwardly(number, worker):
    raise Awkward("this", "that")


def unpicklable(number, worker):
    return lambda: number


def pipe_error(number, worker):
    raise BrokenPipeError("of the dataset")


def test_errors_and_items_that_cannot_be_pickled():
    with pytest.raises(WorkerFailed, match="Awkward: this and that"):
        list(MultiLoader(Steps(fail_awkwardly), 1))
    with pytest.raises((AttributeError, WorkerFailed), match=r"unpicklable|pickle"):
        list(MultiLoader(Steps(unpicklable), 1))
    with pytest.raises(BrokenPipeError, match="of the dataset"):
        list(MultiLoader(Steps(pipe_error), 1))


def killed_at_three(number, worker):
    if (number, worker) == (3, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def gone_at_three(number, worker):
    if number == 3:
        os._exit(0)
    return number


def slow_first_and_killed_second(number, worker):
    if worker == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(FOREVER)


@pytest.mark.parametrize(
    ("step", "how"),
    [
        (killed_at_three, r"worker 1 .*signal 9"),
        (gone_at_three, r"worker 0 .*status 0"),
        (slow_first_and_killed_second, r"worker 1 .*signal 9"),
    ],
)
def test_a_worker_that_dies_raises_immediately(step, how):
    with pytest.raises(WorkerFailed, match=how):
        list(MultiLoader(Steps(step), 2))


def endless(number, worker):
    return number.to_bytes(8, "big") * 10_000


def stubborn(number, worker):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if number:
        time.sleep(FOREVER)
    return number


@pytest.mark.parametrize("step", [endless, stubborn])
def test_closing_early_stops_the_workers(step, monkeypatch):
    monkeypatch.setattr(multiloader, "_GRACE", FOREVER if step is endless else 0.2)
    loader = MultiLoader(Steps(step, 10**9), 3)
    items = iter(loader)
    next(items)
    processes = [psutil.Process(process.pid) for process in loader.pids]
    assert len(processes) == 3
    items.close()
    assert not any(process.is_running() for process in processes)
    assert loader.pids == []


def test_workers_clean_up_before_they_are_terminated(tmp_path):
    loader = MultiLoader(Cleanup(tmp_path), 2)
    next(iter(loader))
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


class Cleanup:
    """A dataset that creates a file when its iterator is closed."""

    def __init__(self, directory):
        self.directory = directory

    def __iter__(self):
        try:
            yield from itertools.repeat(bytes(100_000))
        finally:
            (self.directory / str(current_worker_info().worker)).touch()


def test_a_new_iteration_terminates_the_previous_one():
    loader = MultiLoader(Steps(both, 3), 1)
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 3
    with pytest.raises(WorkerFailed, match="nokill"):
        next(first)
    loader = MultiLoader(Steps(both, 3), 1, nokill=True)
    first = iter(loader)
    next(first)
    assert len(list(loader)) == 3
    assert len(list(first)) == 2
    next(iter(loader))
    loader.kill()
    assert loader.pids == []


def test_the_prefetch_is_bounded(tmp_path):
    loader = MultiLoader(Steps(Counted(tmp_path / "log"), 1000), 1)
    items = iter(loader)
    for taken in range(1, 101):
        next(items)
        assert (tmp_path / "log").stat().st_size <= taken + 1  # one is in the pipe
    items.close()


class Counted:
    """A step with large results that counts its calls in a file."""

    def __init__(self, path):
        self.path = path

    def __call__(self, number, worker):
        with self.path.open("ab") as file:
            file.write(b".")
        return bytes(1_000_000)


def test_workers_exit_with_a_loader_that_is_killed(tmp_path):
    script = (
        "import os, signal\n"
        "from tarmac.compat.webdataset.multi import MultiLoader\n"
        "class Endless:\n"
        "    def __iter__(self):\n"
        "        while True: yield bytes(100_000)\n"
        "loader = MultiLoader(Endless(), 3, start_method='fork')\n"
        "items = iter(loader)\n"
        "next(items)\n"
        "print(*(process.pid for process in loader.pids), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 3
    assert gone(workers), "workers outlive their loader"


def test_arguments(shards, caplog):
    with pytest.raises(ValueError, match="`workers`"):
        MultiLoader([], 0)
    with pytest.raises(ValueError, match="nothing"):
        MultiLoader([], start_method="nothing")
    with pytest.raises(NotPicklable, match="stage 5, Map"):
        list(MultiLoader(WebDataset(shards).map(lambda sample: sample), 1, start_method="spawn"))
    with caplog.at_level(logging.INFO, "tarmac"):
        assert list(MultiLoader([1], 2, True, False, "/tmp/_multi-")) == [1, 1]
    assert "worker 1 has finished" in caplog.text
