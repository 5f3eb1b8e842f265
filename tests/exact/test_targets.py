"""Batches as tensors of a framework."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tarmac
from exact.targets import both, check
from tarmac.errors import UsageError
from tarmac.extras import MissingExtra


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    with tarmac.TarWriter(tmp_path / "x.tar", index=True) as writer:
        for number in range(20):
            picture = rng.integers(0, 256, (6, 5, 3)).astype(np.uint8)
            writer.write(
                {"__key__": f"{number:02d}", "png": picture, "cls": number, "txt": "t", "npy": np.ones(3)}
            )
    return tarmac.Dataset(str(tmp_path / "x.tar")).decode("rgb8")


def test_torch(images):
    torch = pytest.importorskip("torch")
    check("torch", lambda tensor: tensor.numpy(), images)
    for _, batch in both(images, tarmac.To("torch", device="cpu")):
        batch["png"] += 1  # the memory is the caller's
        assert batch["cls"].dtype == torch.int64
    for _, batch in both(images, tarmac.To("torch", device="meta", channels_first=True)):
        assert batch["png"].device.type == "meta"
        assert batch["png"].shape == (4, 3, 6, 5)


@pytest.mark.processes
@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_frameworks_that_start_threads(images, tmp_path, framework):
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    # JAX warns about every later fork of a process that has imported it.
    command = [sys.executable, "-m", "exact.targets", framework, str(tmp_path / "x.tar")]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True)


@pytest.mark.processes
def test_tensors_from_worker_processes(images):
    pytest.importorskip("torch")
    kept = []
    for plain, batch in both(images, "torch", processes=2):
        kept.append((plain["png"], batch["png"]))
    for expected, tensor in kept:  # no segment of shared memory is reused while a tensor refers to it
        np.testing.assert_array_equal(tensor.numpy(), expected)


def test_states_count_the_batches_that_were_yielded(images):
    pytest.importorskip("torch")
    loader = tarmac.Loader(images, 4, to="torch")
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["position"] == 4
    other = tarmac.Loader(images, 4, to="torch")
    other.load_state_dict(loader.state_dict())
    assert [batch["__key__"] for batch in other] == [batch["__key__"] for batch in batches]


def test_batches_of_other_shapes(images):
    pytest.importorskip("torch")
    Pair = namedtuple("Pair", "picture label")

    def collate(items):
        return Pair(np.stack([item["png"] for item in items]), [item["cls"] for item in items])

    batch = next(iter(tarmac.Loader(images, 4, to="torch", collate=collate)))
    assert type(batch).__name__ == "Pair"
    assert tuple(batch.picture.shape) == (4, 6, 5, 3)
    assert isinstance(batch.label, list)


def test_options_that_apply_to_nothing(images):
    pytest.importorskip("torch")
    floats = tarmac.Dataset(images[0]["__url__"]).decode("rgb")
    for dataset in (floats, images.to_tuple("cls", "txt")):
        for options in ({"normalize": True}, {"channels_first": True}):
            with pytest.raises(UsageError, match="uint8"):
                next(iter(tarmac.Loader(dataset, 4, to=tarmac.To("torch", **options))))
        assert next(iter(tarmac.Loader(dataset, 4, to="torch")))


def test_invalid_targets(images, monkeypatch):
    with pytest.raises(UsageError, match="mxnet"):
        tarmac.Loader(images, 4, to="mxnet")
    with pytest.raises(UsageError, match="normalize"):
        tarmac.To("torch", normalize=((0.5,), (0.5, 0.5)))
    with pytest.raises(UsageError, match="normalize"):
        tarmac.To("torch", normalize=((0.5,), (0,)))
    for normalize in ("imagenet", 0.5, (0.5, 0.5), (("a",), ("b",)), ((), ())):
        with pytest.raises(UsageError, match="`normalize`"):
            tarmac.To("torch", normalize=normalize)
    with pytest.raises(UsageError, match="`channels_first`"):
        tarmac.To("torch", channels_first="no")
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match="`device`: torch cannot use 'gpu7'"):
        next(iter(tarmac.Loader(images, 4, to=tarmac.To("torch", device="gpu7"))))
    with pytest.raises(UsageError, match="3"):
        next(iter(tarmac.Loader(images, 4, to=tarmac.To("torch", normalize=((0.5,), (0.5,))))))
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingExtra, match="jax"):
        next(iter(tarmac.Loader(images, 4, to="jax")))
