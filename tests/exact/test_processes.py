"""Worker processes that are killed, fail or are interrupted: no hang, and nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter

import numpy as np
import pytest

import tarmac
from harness import rounds
from harness.waiting import TIMEOUT, gone
from tarmac.errors import NotPicklable, WorkerDied, WorkerFailed

N = 203


def slow(sample):
    time.sleep(0.0005)
    return sample


def suicide(sample):
    if sample["cls"] == 77:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


class Unsendable(Exception):
    def __init__(self, first, second):
        super().__init__(first)
        self.file = open(os.devnull)


def fail_unsendably(sample):
    raise Unsendable("no way", 2)


def large(sample):
    return {"__key__": sample["__key__"], "a": np.full((100, 100), sample["cls"], np.float64)}


def shared_memory():
    """Return the files in shared memory, except semaphores and the directories of other tests: a Loader has none."""
    entries = os.scandir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {entry.name for entry in entries if entry.is_file() and not entry.name.startswith("sem.")}


def test_arrays_are_shared_without_a_copy_while_they_are_used(dataset):
    with tarmac.Loader(dataset.map(large), 20, threads=0, processes=2, tail="short") as loader:
        batches = list(loader)  # all are kept, so no memory may be reused
    for batch in batches:
        numbers = [int(key[1:]) for key in batch["__key__"]]
        assert (batch["a"] == np.array(numbers)[:, None, None]).all()
    assert not batches[0]["a"].flags.owndata  # it is in shared memory
    batches[0]["a"][0] = -1  # and belongs to the caller
    assert batches[0]["a"][0, 0, 0] == -1


def test_memory_is_reused_when_batches_are_released(dataset):
    with tarmac.Loader(dataset.map(large), 10, threads=0, processes=1, tail="short") as loader:
        for _ in range(3):
            for batch in loader:
                del batch
        (worker,) = loader._processes._workers
        assert len(worker._memory) <= 5  # 63 batches went through


def test_batches_that_grow_get_larger_memory(shards):
    def growing(sample):
        return {"a": np.zeros((1 + sample["cls"] // 20, 1000))}

    with tarmac.Loader(
        tarmac.Dataset(shards).decode().map(growing), 20, shuffle=False, processes=1, threads=0,
        collate=lambda items: [item["a"] for item in items], start_method="fork", tail="short",
    ) as loader:  # fmt: skip
        sizes = [sum(a.shape[0] for a in batch) for batch in loader]
        assert sizes[:10] == sorted(sizes[:10])
        assert sum(sizes) == sum(1 + number // 20 for number in range(N))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method(dataset, method):
    with tarmac.Loader(dataset, 50, processes=1, threads=1, start_method=method, tail="short") as loader:
        assert Counter(key for b in loader for key in b["__key__"]).total() == N


def test_a_step_that_cannot_be_pickled_is_named(dataset):
    loader = tarmac.Loader(dataset.map(lambda sample: sample), 5, processes=1, start_method="spawn")
    with pytest.raises(NotPicklable, match=r"Map\(<lambda>\)"):
        list(loader)


def test_an_error_that_cannot_be_sent_is_described(dataset):
    with tarmac.Loader(dataset.map(fail_unsendably), 5, processes=1, start_method="fork") as loader:
        with pytest.raises(WorkerFailed, match=r"(?s)Unsendable.*no way.*fail_unsendably"):
            list(loader)


def test_a_dead_worker_is_an_error_and_the_next_iteration_starts_new_workers(dataset):
    with tarmac.Loader(dataset.map(suicide), 5, processes=2, threads=0, shuffle=False) as loader:
        with pytest.raises(WorkerDied, match="SIGKILL"):
            list(loader)
        assert loader.position == 75  # the batches before it were yielded
        loader.set_epoch(7)
        assert next(iter(loader))["__key__"][0] == "s00000"


@pytest.mark.heavy
def test_workers_killed_at_any_time(dataset):
    """A typed error and no hang, whatever the worker was doing; nothing is left behind."""
    existing, died = shared_memory(), 0
    rng = random.Random(1)
    some = dataset[:80].map(slow)
    for _ in range(rounds(200)):
        with tarmac.Loader(some, 4, processes=2, threads=rng.choice((0, 2)), tail="short") as loader:
            kill_at, seen = rng.randrange(1, 19), 0
            try:
                for batch in loader:
                    seen += len(batch["__key__"])
                    if seen // 4 == kill_at:
                        victim = rng.choice(loader._processes._workers)._process
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(victim.pid, signal.SIGKILL)
                assert seen == 80
            except WorkerDied:
                died += 1
    assert died > 100
    assert shared_memory() <= existing


SCRIPT = """
    import sys, os, signal, time
    import tarmac

    def slow(sample):
        time.sleep(0.005)
        return sample

    if __name__ == "__main__":
        dataset = tarmac.Dataset(sys.argv[1:]).decode().map(slow)
        loader = tarmac.Loader(dataset, 8, processes=2, threads=2)
        for number, batch in enumerate(loader):
            if number == 1:
                print(*[worker._process.pid for worker in loader._processes._workers], flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_exit_with_their_parent(shards, tmp_path, how):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    existing = shared_memory()
    with subprocess.Popen(
        [sys.executable, script, *shards], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        pids = list(map(int, parent.stdout.readline().split()))
        assert len(pids) == 2
        # Ctrl-C reaches the whole process group, other signals only the parent.
        for pid in [parent.pid, *(pids if how == signal.SIGINT else [])]:
            os.kill(pid, how)
        _, errors = parent.communicate(timeout=TIMEOUT)
        assert parent.returncode != 0
        if how == signal.SIGINT:
            assert errors.count("Traceback") == 1  # the parent's own
    assert gone(pids), "workers outlive their parent"
    assert shared_memory() <= existing


def test_workers_exit_with_their_loader(dataset):
    loader = tarmac.Loader(dataset, 8, processes=2)
    next(iter(loader))
    pids = [worker._process.pid for worker in loader._processes._workers]
    assert len(pids) == 2
    del loader
    gc.collect()
    assert gone(pids), "workers outlive their loader"


def test_no_descriptors_leak_over_many_epochs(dataset):
    with tarmac.Loader(dataset.map(large), 20, processes=1, threads=0) as loader:
        list(loader)
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            for batch in loader:
                del batch
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


def test_a_worker_killed_between_a_batch_and_its_memory(dataset, monkeypatch):
    def killed(_connection):
        for child in multiprocessing.active_children():
            child.kill()
        raise ConnectionResetError

    monkeypatch.setattr("tarmac.exact.loader.processes.recv_handle", killed)
    with (
        tarmac.Loader(dataset.map(large), 20, threads=0, processes=1) as loader,
        pytest.raises(WorkerDied, match="SIGKILL"),
    ):
        list(loader)


def threads_of_torch(sample):
    torch = pytest.importorskip("torch")
    return (torch.ones(400, 400) @ torch.ones(400, 400)).sum().item(), torch.get_num_threads()


def test_torch_computes_in_forked_workers(dataset):
    """Its own threads do not survive a fork."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        threads_of_torch({})  # starts them
        with tarmac.Loader(dataset.map(threads_of_torch), 20, processes=2) as loader:
            assert {count for _, counts in loader for count in counts} == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_script_without_a_guard(dataset, tmp_path):
    """A spawned process runs the script again, and ends when that starts a process in turn."""
    url = dataset[0]["__url__"]
    script = tmp_path / "unguarded.py"
    script.write_text(
        f"import tarmac\nlist(tarmac.Loader(tarmac.Dataset({url!r}), 2, processes=1, start_method='spawn'))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 1
    assert "WorkerDied" in done.stderr
    assert 'below `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]
