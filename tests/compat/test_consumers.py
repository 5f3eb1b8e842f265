"""Unchanged programs of others on tarmac: the training data of open_clip and the reader of timm."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import logging
import os
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image

from harness.shards import plain

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

SHARDS, SAMPLES = 4, 9
ALL = sorted(range(SHARDS * SAMPLES))


def missing(package):
    """Skip a test of a missing package; fail under CI."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{package} is not installed")


def jpeg(number):
    """An image whose colour is its number."""
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (number, number, number)).save(stream, "JPEG", quality=100)
    return stream.getvalue()


@pytest.fixture
def shards(tmp_path):
    for number in range(SHARDS):
        files = []
        for i in range(SAMPLES):
            name = number * SAMPLES + i
            files += [
                (f"{name:04d}.cls", b"%d" % name),
                (f"{name:04d}.jpg", jpeg(name)),
                (f"{name:04d}.txt", b"%d" % name),
            ]
        (tmp_path / f"train-{number:04d}.tar").write_bytes(plain(files))
    return str(tmp_path / f"train-{{0000..{SHARDS - 1:04d}}}.tar")


def preprocess(image):
    return torch.tensor(image.getpixel((4, 4)))


def tokenizer(text):
    return torch.tensor([[int(text)]])


def options(shards, **changed):
    values = {
        "train_data": shards,
        "val_data": shards,
        "dataset_resampled": False,
        "train_num_samples": SHARDS * SAMPLES,
        "val_num_samples": None,
        "train_data_upsampling_factors": None,
        "seed": 0,
        "batch_size": 3,
        "workers": 2,
        "world_size": 1,
    }
    return argparse.Namespace(**values | changed)


@pytest.fixture
def open_clip(installed, monkeypatch):
    """open_clip_train.data from PyPI. Packages that it needs for other data are empty modules."""
    if find_spec("open_clip_train") is None:
        missing("open_clip_torch")
    for name in ("pandas", "torchvision", "torchvision.datasets"):
        stand_in = types.ModuleType(name)
        stand_in.datasets = None
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.delitem(sys.modules, "open_clip_train.data", raising=False)
    yield importlib.import_module("open_clip_train.data")
    sys.modules.pop("open_clip_train.data", None)


def numbers(loader):
    """Return the numbers that a loader yields. Check that images and texts match."""
    result = []
    for images, texts in loader:
        for image, text in zip(images, texts, strict=True):
            assert abs(int(image[0]) - int(text[0])) <= 2
            result.append(int(text[0]))
    return result


@pytest.mark.parametrize("workers", [0, 2])
def test_open_clip_trains(open_clip, shards, workers):
    assert open_clip.wds.__name__ == "tarmac.compat.webdataset"
    info = open_clip.get_wds_dataset(
        options(shards, workers=workers), preprocess, is_train=True, tokenizer=tokenizer
    )
    epochs = []
    for epoch in range(2):
        info.set_epoch(epoch)
        epochs.append(numbers(info.dataloader))
    assert info.dataloader.num_batches == 12
    assert [sorted(epoch) for epoch in epochs] == [ALL, ALL]
    assert epochs[0] != epochs[1]
    info.dataloader.close()


def test_open_clip_validates(open_clip, shards):
    info = open_clip.get_wds_dataset(options(shards), preprocess, is_train=False, tokenizer=tokenizer)
    assert sorted(numbers(info.dataloader)) == ALL
    info.dataloader.close()


def test_open_clip_resamples_with_weights(open_clip, shards):
    first, second = shards.replace("{0000..0003}", "0000"), shards.replace("{0000..0003}", "0001")
    args = options(f"{first}::{second}", dataset_resampled=True, train_data_upsampling_factors="1::0")
    info = open_clip.get_wds_dataset(args, preprocess, is_train=True, tokenizer=tokenizer)
    result = numbers(info.dataloader)
    assert len(result) == 36
    assert set(result) <= set(range(SAMPLES))
    info.dataloader.close()


@pytest.mark.parametrize("train", [True, False])
def test_open_clip_continues_after_a_damaged_shard(open_clip, shards, caplog, train):
    """The grouping of open_clip yields no half sample, and the next shard is complete."""
    path = Path(shards.replace("{0000..0003}", "0001"))
    data = path.read_bytes()
    torn = data.index(b"0013.txt")  # the image of sample 13 is complete, its caption is not
    path.write_bytes(data[: torn + 300])
    args = options(shards, workers=0, train_num_samples=31, batch_size=1)
    with caplog.at_level(logging.WARNING):
        info = open_clip.get_wds_dataset(args, preprocess, is_train=train, tokenizer=tokenizer)
        result = numbers(info.dataloader)
    assert sorted(result) == [number for number in ALL if not 13 <= number < 18]
    assert "Handling webdataset error" in caplog.text
    assert "train-0001.tar" in caplog.text


@pytest.fixture
def reader_wds(installed, monkeypatch):
    """timm.data.readers.reader_wds from PyPI, without the models that its package imports."""
    spec = find_spec("timm")
    if spec is None:
        missing("timm")
    loaded = {name for name in sys.modules if name == "timm" or name.startswith("timm.")}
    (home,) = spec.submodule_search_locations
    for name in ("timm", "timm.data", "timm.data.readers"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(home, *name.split(".")[1:]))]
        monkeypatch.setitem(sys.modules, name, package)
    yield importlib.import_module("timm.data.readers.reader_wds")
    for name in [name for name in sys.modules if name.startswith("timm.") and name not in loaded]:
        sys.modules.pop(name)


def test_timm_reads(reader_wds, shards, tmp_path):
    names = [f"train-{number:04d}.tar" for number in range(SHARDS)]
    split = {"name": "train", "num_samples": 36, "filenames": names, "shard_lengths": [SAMPLES] * SHARDS}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": {"train": split}}))
    evaluation = reader_wds.ReaderWds(str(tmp_path), split="train", batch_size=4)
    assert [target for _, target in evaluation] == ALL
    training = reader_wds.ReaderWds(str(tmp_path), split="train", is_training=True, batch_size=4)
    seen = [target for _, target in training]
    assert sorted(seen) == ALL
    assert seen != ALL
    by_pattern = reader_wds.ReaderWds(str(tmp_path), split="train-{0000..0003}.tar|36", batch_size=4)
    assert [target for _, target in by_pattern] == ALL
