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


SPECS = {
    "rgb8": (np.uint8, (16, 16, 3)),
    "rgb": (np.float32, (16, 16, 3)),
    "l8": (np.uint8, (16, 16)),
    "rgba": (np.float32, (16, 16, 4)),
    "torchrgb": (torch.float32, (3, 16, 16)),
    "torchrgb8": (torch.uint8, (3, 16, 16)),
    "torchl": (torch.float32, (16, 16)),
}


@pytest.mark.parametrize("spec", [*SPECS, "pil", "pill", "pilrgba"])
def test_after_any_decoder(tmp_path, spec):
    path = str(tmp_path / "a.tar")
    with tarmac.TarWriter(path, index=True) as writer:
        for number in range(6):
            writer.write({"__key__": f"{number:03d}", "jpg": JPEG})

    def pixels(image):
        """Return rows and columns of red or grey, from 0 to 255."""
        if isinstance(image, Image.Image):
            assert image.size == (16, 16)
            assert image.mode == {"pil": "RGB", "pill": "L", "pilrgba": "RGBA"}[spec]
            image = np.asarray(image)
        else:
            dtype, shape = SPECS[spec]
            assert type(image) is (torch.Tensor if "torch" in spec else np.ndarray)
            assert (image.dtype, tuple(image.shape)) == (dtype, shape)
            scale = 255 if dtype in (np.float32, torch.float32) else 1
            image = np.asarray(image) * scale
        image = image.transpose(1, 2, 0) if "torch" in spec and image.ndim == 3 else image
        return image[..., 0] if image.ndim == 3 else image

    crop = tarmac.RandomResizedCrop(16)
    ds = tarmac.Dataset(path)
    order = list(range(6))
    expected = ds.map(crop, random=True).batch(order, seeds=order)
    assert type(expected[0]["jpg"]) is np.ndarray
    cropped = ds.decode(spec).map(crop, random=True).batch(order, seeds=order)
    for one, other in zip(cropped, expected, strict=True):
        wanted = other["jpg"].astype(float)
        wanted = wanted @ [0.299, 0.587, 0.114] if spec in ("l8", "torchl", "pill") else wanted[..., 0]
        assert np.abs(pixels(one["jpg"]) - wanted).mean() < 4  # the same part, mirrored or not
    if "pil" not in spec:
        stacked = next(iter(tarmac.Loader(ds.decode(spec).map(crop, random=True).to_tuple("jpg"), 3)))[0]
        assert tuple(stacked.shape) == (3, *SPECS[spec][1])
    assert len(list(tarmac.WebDataset(path, shardshuffle=False).decode(spec).map(crop))) == 6


def test_the_axis_of_one_channel_stays():
    crop = tarmac.RandomResizedCrop(8, fields="png")
    assert crop({"__key__": "a", "png": np.zeros((20, 30, 1), np.uint8)})["png"].shape == (8, 8, 1)
    assert crop({"__key__": "a", "png": torch.zeros((1, 20, 30))})["png"].shape == (1, 8, 8)


@pytest.mark.parametrize("value", ["text", np.zeros(3), torch.zeros(2, 3, 4, 5), 5])
def test_values_that_are_not_images(value):
    with pytest.raises(UsageError, match=r"expected an image .* got"):
        RandomResizedCrop(8)({"__key__": "a", "jpg": value})


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


def test_repr():
    text = "RandomResizedCrop(224, scale=(0.5, 1.0), ratio=(0.75, 1.3333333333333333), mirror=0.5)"
    assert repr(tarmac.RandomResizedCrop(224, scale=(0.5, 1.0))) == text
