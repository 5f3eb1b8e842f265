"""Follow the hints of the Loader."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest

import tarmac
from harness.datasets import write_shards
from harness.hints import follows, hinted
from harness.waiting import TIMEOUT
from tarmac.errors import LoaderError, MismatchedBatch, NotPicklable, StateMismatch, WorkerFailed
from tarmac.exact.loader import processes


@pytest.fixture
def dataset(tmp_path):
    """Six samples in two shards: `cls` is the number."""
    dataset = tarmac.Dataset(write_shards(tmp_path, [3, 3]))
    yield dataset
    dataset.close()


UNSENDABLE = "convert it to arrays, numbers or text in a map(), or use threads instead of processes."
UNREADABLE = "convert its fields to arrays, numbers or text in a map(), or use threads instead of processes."


class Odd:
    """Can be pickled but not unpickled."""

    def __reduce__(self):
        return Odd, (1, 2, 3)


@pytest.mark.processes
@follows(
    "convert it to arrays, numbers or text in a map(), or use threads instead of processes.",
    "convert its fields to arrays, numbers or text in a map(), or use threads instead of processes.",
)
@pytest.mark.parametrize(
    ("hint", "kind", "converted"),
    [(UNSENDABLE, threading.Lock, lambda lock: np.array([lock.locked()])), (UNREADABLE, Odd, repr)],
)
def test_a_batch_that_cannot_be_sent(dataset, hint, kind, converted):
    samples = dataset.map(lambda sample: {"key": sample["__key__"], "value": kind()})
    with (
        tarmac.Loader(samples, 3, threads=0, processes=1, start_method="fork") as loader,
        hinted(hint, NotPicklable),
    ):
        next(iter(loader))
    changed = samples.map(lambda item: {**item, "value": converted(item["value"])})
    with tarmac.Loader(changed, 3, threads=0, processes=1, start_method="fork") as loader:
        assert len(list(loader)) == 2
    with tarmac.Loader(samples, 3, threads=2) as loader:
        assert len(list(loader)) == 2


@follows("convert it in a map() before the Loader.")
def test_different_dtypes(dataset):
    def array(sample):
        return np.zeros(2, "f4" if int(sample["cls"]) % 2 else "f8")

    with tarmac.Loader(dataset.map(array), 6) as loader:
        with hinted("convert it in a map() before the Loader.", MismatchedBatch):
            list(loader)
    with tarmac.Loader(dataset.map(array).map(lambda value: value.astype("f4")), 6) as loader:
        assert next(iter(loader)).shape == (6, 2)


SHAPES = """resize (Resize), crop (RandomResizedCrop) or pad to one shape in a map(), use Loader(collate=list), \
or replace a few odd samples with Loader(max_bad_samples=n)."""
FIELDS = """pick common fields with to_tuple("jpg;png", "cls"), select samples with where("has(txt)"), use \
Loader(collate=list), or replace a few odd samples with Loader(max_bad_samples=n)."""


@follows(
    "resize (Resize), crop (RandomResizedCrop) or pad to one shape in a map(), use Loader(collate=list), "
    "or replace a few odd samples with Loader(max_bad_samples=n)."
)
def test_different_shapes(dataset):
    def image(sample):
        return {"npy": np.zeros((8 + (sample["cls"] == b"3"), 8, 3), "u1")}

    images = dataset.map(image)
    with tarmac.Loader(images, 6) as loader, hinted(SHAPES, MismatchedBatch):
        list(loader)
    crop = tarmac.RandomResizedCrop(4, fields="npy", mirror=0)
    resized = images.map(tarmac.Resize((8, 8), fields="npy"))
    for one_shape in (resized, images.map(crop, random=True)):
        with tarmac.Loader(one_shape, 6) as loader:
            assert len(next(iter(loader))["npy"]) == 6
    with tarmac.Loader(images, 6, collate=list) as loader:
        assert len(next(iter(loader))) == 6
    with tarmac.Loader(images, 6, max_bad_samples=1, shuffle=False) as loader:
        assert next(iter(loader))["npy"].shape == (6, 8, 8, 3)


@follows(
    'pick common fields with to_tuple("jpg;png", "cls"), select samples with where("has(txt)"), use '
    "Loader(collate=list), or replace a few odd samples with Loader(max_bad_samples=n)."
)
def test_different_fields(tmp_path):
    fields = [{"jpg": b"1", "txt": b""}, {"jpg": b"2", "txt": b""}, {"png": b"3"}]
    with tarmac.TarWriter(tmp_path / "x.tar", index=True) as writer:
        for number, each in enumerate(fields):
            writer.write({"__key__": f"{number}", "cls": number, **each})
    dataset = tarmac.Dataset(tmp_path / "x.tar")
    with tarmac.Loader(dataset, 3) as loader, hinted(FIELDS, MismatchedBatch):
        list(loader)
    with tarmac.Loader(dataset.to_tuple("jpg;png", "cls"), 3, shuffle=False) as loader:
        assert next(iter(loader))[0] == [b"1", b"2", b"3"]
    with tarmac.Loader(dataset.where("has(txt)"), 2) as loader:
        assert len(next(iter(loader))["txt"]) == 2
    with tarmac.Loader(dataset, 3, collate=list) as loader:
        assert len(next(iter(loader))) == 3
    with tarmac.Loader(dataset, 3, max_bad_samples=1, shuffle=False) as loader:
        assert len(next(iter(loader))["jpg"]) == 3


@follows("use the dataset and Loader options of the saved state, or start without the state.")
def test_a_state_of_another_order(dataset):
    with tarmac.Loader(dataset, 2, window=2) as loader:
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), [batch["cls"] for batch in batches]
    with tarmac.Loader(dataset, 2, window=3) as loader:
        hint = "use the dataset and Loader options of the saved state, or start without the state."
        with hinted(hint, StateMismatch):
            loader.load_state_dict(state)
        assert len(list(loader)) == 3
    with tarmac.Loader(dataset, 2, window=2) as loader:
        loader.load_state_dict(state)
        assert [batch["cls"] for batch in loader] == rest


@follows('a different selection; tail="short" accepts an empty dataset.')
def test_a_loader_of_an_empty_dataset(dataset):
    with hinted('a different selection; tail="short" accepts an empty dataset.', LoaderError):
        list(tarmac.Loader(dataset.where("key = 'absent'"), 2))
    with tarmac.Loader(dataset.where("key != 'absent'"), 2) as loader:
        assert len(list(loader)) == 3
    with tarmac.Loader(dataset.where("key = 'absent'"), 2, tail="short") as loader:
        assert list(loader) == []


@follows('{}tail="pad", or tail="short".')
def test_a_batch_size_above_the_number_of_samples(dataset):
    with hinted('{}tail="pad", or tail="short".', LoaderError) as caught:
        list(tarmac.Loader(dataset, 7))
    assert caught.value.hint.startswith("batch_size=6 or less, ")
    for size, tail in ((6, "drop"), (7, "pad"), (7, "short")):
        with tarmac.Loader(dataset, size, tail=tail) as loader:
            assert len(list(loader)) == 1


@pytest.mark.processes
@follows("a larger `stall`, or check whether a step of the dataset waits forever.")
def test_a_worker_that_sends_nothing(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "SHUTDOWN_TIMEOUT", 0.1)
    release = tmp_path / "release"
    os.mkfifo(release)

    def wait(sample):
        return release.read_bytes() and sample["cls"]

    with tarmac.Loader(
        dataset.map(wait), 6, threads=0, processes=1, start_method="fork", stall=0.3
    ) as loader:
        with hinted("a larger `stall`, or check whether a step of the dataset waits forever.", WorkerFailed):
            list(loader)
    release.unlink()
    release.write_bytes(b"go")
    with tarmac.Loader(
        dataset.map(wait), 6, threads=0, processes=1, start_method="fork", stall=TIMEOUT
    ) as loader:
        assert len(list(loader)) == 1


@pytest.mark.processes
@follows("iterate again, which starts new processes; kill -CONT continues a stopped one in time.")
def test_a_stopped_worker(dataset, monkeypatch):
    existing = set(psutil.Process().children())
    with tarmac.Loader(dataset, 1, threads=0, processes=1, prefetch=1) as loader:
        batches = iter(loader)
        next(batches)
        (worker,) = set(psutil.Process().children()) - existing
        worker.suspend()
        subprocess.run(["kill", "-CONT", str(worker.pid)], check=True)
        assert len(list(batches)) == 5
        monkeypatch.setattr(processes, "STOPPED", 0.2)
        batches = iter(loader)
        next(batches)
        (worker,) = set(psutil.Process().children()) - existing
        worker.suspend()
        hint = "iterate again, which starts new processes; kill -CONT continues a stopped one in time."
        with hinted(hint, WorkerFailed):
            list(batches)
        assert len(list(loader)) == 6


@pytest.mark.processes
@follows("{} Otherwise {}")
def test_a_script_without_a_guard(tmp_path):
    (shard,) = write_shards(tmp_path, [4])
    script = tmp_path / "script.py"
    work = f"list(tarmac.Loader(tarmac.Dataset({shard!r}), 2, processes=1, start_method='spawn'))"

    def result(text):
        script.write_text(f"import tarmac\n{text}\n")
        return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=TIMEOUT)

    hint = result(work).stderr.splitlines()[-1].partition("Try: ")[2]
    assert hint.startswith('put the main program below `if __name__ == "__main__":`, ')
    assert " Otherwise check the system log" in hint
    assert result(f'if __name__ == "__main__":\n    {work}').returncode == 0


@pytest.mark.processes
@follows("smaller batches, fewer processes, or threads instead of processes.")
def test_no_shared_memory(dataset, monkeypatch):
    truncate, most = os.ftruncate, 40_000

    def full(fd, size):
        if size > most:
            raise OSError(28, "No space left on device")
        truncate(fd, size)

    monkeypatch.setattr(os, "ftruncate", full)
    arrays = dataset.map(lambda sample: np.zeros(1000))  # 8000 bytes
    options = {"threads": 0, "processes": 1, "start_method": "fork"}
    with (
        tarmac.Loader(arrays, 6, **options) as loader,
        hinted("smaller batches, fewer processes, or threads instead of processes.", LoaderError),
    ):
        list(loader)
    with tarmac.Loader(arrays, 3, **options) as loader:
        assert len(list(loader)) == 2
    with tarmac.Loader(arrays, 6, threads=2) as loader:
        assert len(list(loader)) == 1


@follows('decode("rgb8")')
def test_images_that_cannot_be_normalised(tmp_path):
    pytest.importorskip("torch")
    with tarmac.TarWriter(tmp_path / "x.tar", index=True) as writer:
        writer.write({"__key__": "0", "png": np.zeros((4, 4, 3), np.uint8)})
    dataset = tarmac.Dataset(str(tmp_path / "x.tar"))
    to = tarmac.To("torch", normalize=True)
    with hinted('decode("rgb8")'):
        next(iter(tarmac.Loader(dataset.decode("rgb"), 1, tail="short", to=to)))
    assert next(iter(tarmac.Loader(dataset.decode("rgb8"), 1, tail="short", to=to)))["png"].max() == 0


LARGE = """
import sys
import numpy as np
import tarmac
from harness.hints import hinted
loader = tarmac.Loader(tarmac.Dataset(sys.argv[1]).map(lambda sample: 3_000_000_000), 2, to="jax")
with hinted('jax.config.update("jax_enable_x64", True)'):
    next(iter(loader))
import jax
jax.config.update("jax_enable_x64", True)
assert np.asarray(next(iter(loader))).tolist() == [3_000_000_000] * 2
"""


@pytest.mark.processes
@follows('jax.config.update("jax_enable_x64", True)')
def test_integers_that_jax_would_cut(tmp_path):
    if find_spec("jax") is None:
        pytest.skip("jax is not installed")
    [shard] = write_shards(tmp_path, [2])
    # JAX warns about every later fork of a process that has imported it.
    subprocess.run([sys.executable, "-c", LARGE, shard], cwd=Path(__file__).parents[1], check=True)


@pytest.mark.processes
@follows("iterate again.")
def test_a_loader_that_was_closed_during_an_iteration(dataset):
    loader = tarmac.Loader(dataset, 2, processes=1, prefetch=1)
    batches = iter(loader)
    next(batches)
    loader.close()
    with hinted("iterate again.", LoaderError):
        list(batches)
    assert len(list(loader)) == 3
    loader.close()
