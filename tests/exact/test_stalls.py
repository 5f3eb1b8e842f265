"""Stopped worker processes, batches that cannot be sent, and a small /dev/shm are errors."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

import tarmac
from tarmac.errors import NotPicklable, WorkerFailed
from tarmac.exact.loader import processes


@pytest.fixture
def workers():
    """Return the child processes started in this test; earlier tests may have left helpers."""
    existing = {child.pid for child in psutil.Process().children()}
    return lambda: [child for child in psutil.Process().children() if child.pid not in existing]


def big(sample):
    """Return text, which is sent in the message and not in shared memory."""
    return {"__key__": sample["__key__"], "text": "x" * 100_000}


@pytest.mark.parametrize("step", [None, big])
def test_a_stopped_worker_is_an_error(dataset, workers, monkeypatch, step):
    """Also when it was stopped in the middle of a message."""
    monkeypatch.setattr(processes, "STOPPED", 5.0)
    ds = dataset if step is None else dataset.map(step)
    with tarmac.Loader(ds, 10, threads=0, processes=2) as loader:
        batches = iter(loader)
        next(batches)
        stopped = workers()
        assert len(stopped) == 2
        for child in stopped:
            os.kill(child.pid, signal.SIGSTOP)
        with pytest.raises(WorkerFailed, match="SIGSTOP"):
            list(batches)
        assert not workers()
        assert len(list(loader)) > 0  # new workers are started


def test_closing_does_not_wait_for_stopped_workers(dataset, workers, monkeypatch):
    monkeypatch.setattr(processes, "SHUTDOWN_TIMEOUT", 600.0)
    loader = tarmac.Loader(dataset, 10, threads=0, processes=3)
    next(iter(loader))
    for child in workers():
        os.kill(child.pid, signal.SIGSTOP)
    loader.close()
    assert not workers()


def hang(sample):
    threading.Event().wait()


def test_a_step_that_never_returns_is_an_error(dataset, workers, monkeypatch):
    monkeypatch.setattr(processes, "SHUTDOWN_TIMEOUT", 0.1)
    with tarmac.Loader(dataset.map(hang), 10, threads=0, processes=1, stall=0.4) as loader:
        with pytest.raises(WorkerFailed, match=r"0\.4 s.*`stall`"):
            next(iter(loader))
        assert not workers()
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="stall"):
            tarmac.Loader(dataset, 10, stall=wrong)


def slow(sample):
    time.sleep(0.02)
    return sample


def test_slow_is_not_stalled(dataset):
    with tarmac.Loader(dataset.map(slow), 50, threads=0, processes=1, stall=60) as loader:
        assert len(list(loader)) == 4


class Odd:
    """Can be pickled but not unpickled."""

    def __reduce__(self):
        return Odd, (1, 2, 3)


def with_lock(sample):
    return {"__key__": sample["__key__"], "lock": threading.Lock()}


def with_function(sample):
    return sample["__key__"], lambda: None


def with_odd(sample):
    return {"__key__": sample["__key__"], "odd": Odd()}


@pytest.mark.parametrize(
    ("step", "collate", "what"),
    [
        (with_lock, None, 'field "lock" of the batch, of type lock'),
        (with_function, None, 'field "1" of the batch, of type function'),
        (with_lock, lambda items: iter(items), "list_iterator"),
        (with_odd, None, "TypeError"),
    ],
)
def test_batches_that_cannot_be_sent(dataset, step, collate, what):
    ds = dataset.map(step)
    with tarmac.Loader(ds, 10, threads=0, processes=2, collate=collate, start_method="fork") as loader:
        for _ in range(2):
            with pytest.raises(NotPicklable, match=what):
                next(iter(loader))
    assert next(iter(tarmac.Loader(ds, 10, threads=0, collate=collate)))  # threads send nothing


SMALL = """
import sys
import numpy as np
import tarmac

def large(sample):
    return np.full((500, 1000), sample["cls"], np.float32)

with tarmac.Loader(tarmac.Dataset(sys.argv[1]).decode().map(large), 8, threads=0, processes=2) as loader:
    seen = sorted(int(value) for batch in loader for value in batch[:, 0, 0])
assert len(seen) == len(set(seen)) == 40, seen
print("complete")
"""


STREAM = """
import sys
import numpy as np
import tarmac

rows, workers = int(sys.argv[2]), int(sys.argv[3])

def large(sample):
    return np.full((rows, 1000), sample["cls"], np.float32)

dataset = tarmac.WebDataset(sys.argv[1]).decode().map(large)
seen = []
try:
    for batch in tarmac.WebLoader(dataset, batch_size=None, num_workers=workers):
        seen.append(int(batch[0, 0]))
except tarmac.errors.LoaderError as error:
    print("refused" if "/dev/shm, which has 1048576 bytes" in str(error) else error)
else:
    print("complete" if sorted(seen) == list(range(40)) else seen)
"""


def in_a_small_dev_shm(tmp_path, program, *arguments):
    """Run a program with a /dev/shm of one megabyte and return its output."""
    unshare = shutil.which("unshare")
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    if unshare is None or subprocess.run([unshare, "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("cannot mount another /dev/shm")
    with tarmac.TarWriter(tmp_path / "a.tar", index=True) as writer:
        for number in range(40):
            writer.write({"__key__": f"{number:02d}", "cls": number})
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    program_and_shard = [sys.executable, str(script), str(tmp_path / "a.tar")]
    done = subprocess.run(
        [unshare, "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", *program_and_shard, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_small_dev_shm(tmp_path):
    """Batches of 16 MB are sent although /dev/shm has one megabyte."""
    assert in_a_small_dev_shm(tmp_path, SMALL) == "complete\n"


@pytest.mark.parametrize(
    ("rows", "workers", "result"),
    [("40", "2", "complete"), ("300", "2", "refused"), ("2000", "1", "refused")],
)
def test_a_small_dev_shm_under_torch(tmp_path, rows, workers, result):
    """A batch that never fits is an error; torch would wait forever."""
    assert in_a_small_dev_shm(tmp_path, STREAM, rows, workers) == f"{result}\n"
