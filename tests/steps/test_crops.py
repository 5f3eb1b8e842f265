"""Random crops have the right shape and pixels, and depend only on the random numbers."""

from __future__ import annotations

import io
import pickle
import random

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import tarmac
from tarmac.codecs import boxes
from tarmac.errors import MissingField, UsageError
from tarmac.steps.crops import RandomResizedCrop, random_box

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def gradient(width=120, height=90):
    """Return an image that is brighter to the right and downwards, so that crops and mirroring show."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([across, down, 0 * across], axis=2).astype(np.uint8)


JPEG = simplejpeg.encode_jpeg(gradient(), 95)


class Numbers:
    """A generator of given numbers."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 1000))
def test_boxes_are_inside(width, height, seed):
    left, top, right, bottom = random_box(width, height, SCALE, RATIO, random.Random(seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_boxes_have_the_requested_areas_and_aspect_ratios():
    rng = np.random.default_rng(1)
    selected = np.array([random_box(1000, 1000, (0.1, 0.5), (0.5, 2.0), rng) for _ in range(3000)])
    wide, high = selected[:, 2] - selected[:, 0], selected[:, 3] - selected[:, 1]
    areas, ratios = wide * high / 1e6, wide / high
    assert 0.099 < areas.min() < 0.11 < 0.49 < areas.max() < 0.501
    assert 0.49 < ratios.min() < 0.52 < 1.95 < ratios.max() < 2.02
    assert abs(np.log(ratios).mean()) < 0.05  # wide and high ones are equally likely
    middles = (selected[:, 0] + selected[:, 2]).mean() / 2, (selected[:, 1] + selected[:, 3]).mean() / 2
    assert all(470 < middle < 530 for middle in middles)


def test_the_centre_is_taken_if_nothing_fits():
    assert random_box(1000, 10, (1.0, 1.0), RATIO, random.Random(0)) == (493, 0, 506, 10)
    assert random_box(10, 1000, (1.0, 1.0), RATIO, random.Random(0)) == (0, 493, 10, 506)
    assert random_box(1, 1, SCALE, RATIO, random.Random(0)) == (0, 0, 1, 1)


@pytest.mark.parametrize("native", [True, False])
def test_crops(monkeypatch, native):
    if not native:
        monkeypatch.setattr(boxes, "_native", lambda: None)
    crop = RandomResizedCrop(32, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    straight = crop.crop(JPEG, Numbers(0, 0, 0.999, 0, 0.9))  # the upper right corner, not mirrored
    mirrored = crop.crop(JPEG, Numbers(0, 0, 0.999, 0, 0.1))
    np.testing.assert_array_equal(mirrored, straight[:, ::-1])
    assert straight.shape == (32, 32, 3)
    assert straight.dtype == np.uint8
    assert straight[:, :, 0].min() > 120  # from the right half
    assert straight[:, :, 1].max() < 150  # from the upper half
    assert all(array.flags.c_contiguous and array.flags.writeable for array in (straight, mirrored))
    torch.from_numpy(mirrored)  # rejects negative strides


def test_pixels_do_not_depend_on_the_native_decoder(monkeypatch):
    crop = RandomResizedCrop(48)
    ours = [crop.crop(JPEG, random.Random(seed)) for seed in range(40)]
    monkeypatch.setattr(boxes, "_native", lambda: None)
    np.testing.assert_array_equal(ours, [crop.crop(JPEG, random.Random(seed)) for seed in range(40)])


def test_large_parts_are_averaged():
    noise = np.random.default_rng(0).integers(0, 2, (400, 400, 1)).repeat(3, 2).astype(np.uint8) * 255
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "PNG")
    small = RandomResizedCrop(40, scale=(1.0, 1.0), ratio=(1.0, 1.0)).crop(
        stream.getvalue(), random.Random(0)
    )
    assert small.std() < 30  # a hundred black and white pixels averaged for each


def test_in_datasets_and_pipelines(tmp_path):
    path = str(tmp_path / "a.tar")
    with tarmac.TarWriter(path, index=True) as writer:
        for number in range(20):
            writer.write({"__key__": f"{number:03d}", "jpg": JPEG, "cls": number})
    crop = tarmac.RandomResizedCrop(16)
    ds = tarmac.Dataset(path).decode(only="cls").map(crop, random=True).to_tuple("jpg", "cls")
    first, second = (list(tarmac.Loader(ds, 5, seed=3, threads=threads)) for threads in (0, 2))
    for (images, labels), (others, _) in zip(first, second, strict=True):
        assert images.shape == (5, 16, 16, 3)
        assert len(set(labels.tolist())) == 5
        np.testing.assert_array_equal(images, others)
    assert (first[0][0][0] != first[0][0][1]).any()  # another part of the same image
    streamed = list(tarmac.WebDataset(path, shardshuffle=False).map(crop))
    assert [sample["jpg"].shape for sample in streamed] == [(16, 16, 3)] * 20
    assert streamed[0]["__key__"] == "000"
    assert pickle.loads(pickle.dumps(crop)).size == 16


def test_invalid_arguments_and_missing_fields():
    with pytest.raises(MissingField, match="jpg;jpeg;png;webp"):
        RandomResizedCrop(8)({"__key__": "a", "txt": b""})
    for field, bad in (
        ("size", {"size": 0}),
        ("scale", {"size": 8, "scale": (0, 1)}),
        ("scale", {"size": 8, "scale": (0.5, 1.1)}),
        ("ratio", {"size": 8, "ratio": (2, 1)}),
    ):
        with pytest.raises(UsageError, match=f"`{field}`"):
            RandomResizedCrop(**bad)
