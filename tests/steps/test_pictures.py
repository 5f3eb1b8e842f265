"""Cropped and resized images have the right shape and pixels, and depend only on the random numbers."""

from __future__ import annotations

import io
import pickle
import random

import numpy as np
import pytest
import simplejpeg
import torch
from bench.cases.pictures import area_resized, decibels, quality
from bench.data import natural_jpegs
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import tarmac
from tarmac.codecs import accelerator
from tarmac.errors import DecodeFailed, DecompressionBomb, MissingField, UsageError
from tarmac.exact.steps import seeded_generator
from tarmac.limits import Limits
from tarmac.steps.pictures import RandomResizedCrop, Resize, ResizeCenterCrop, random_box

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def gradient(width=120, height=90):
    """Return an image that is brighter to the right and downwards, so that crops and mirroring show."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([across, down, 0 * across], axis=2).astype(np.uint8)


JPEG = simplejpeg.encode_jpeg(gradient(), 95)


def without_native(monkeypatch):
    monkeypatch.setattr(accelerator, "jpeg", lambda: None)
    monkeypatch.setattr(accelerator, "pixels", lambda: None)


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


def test_the_parts_of_a_seed_never_change():
    """A run that is resumed by a later version goes on with the same crops."""
    crop = RandomResizedCrop(224)
    expected = {
        0: (59, 943, 1, 763, False),
        1: (445, 887, 103, 465, True),
        2: (2, 990, 0, 764, False),
        3: (197, 688, 175, 654, False),
    }
    for seed, numbers in expected.items():
        across, down, mirrored = crop.region(1024, 768, random.Random(seed))
        assert (across.start, across.stop, down.start, down.stop, mirrored) == numbers
    across, down, mirrored = crop.region(500, 375, seeded_generator(12345))
    assert (across.start, across.stop, down.start, down.stop, mirrored) == (285, 492, 137, 347, True)


@pytest.mark.parametrize("native", [True, False])
def test_crops(monkeypatch, native):
    if not native:
        without_native(monkeypatch)
    crop = RandomResizedCrop(32, scale=(0.25, 0.25), ratio=(1.0, 1.0))
    straight = crop.transform(JPEG, Numbers(0, 0, 0.999, 0, 0.9))  # the upper right corner, not mirrored
    mirrored = crop.transform(JPEG, Numbers(0, 0, 0.999, 0, 0.1))
    np.testing.assert_array_equal(mirrored, straight[:, ::-1])
    assert straight.shape == (32, 32, 3)
    assert straight.dtype == np.uint8
    assert straight[:, :, 0].min() > 120  # from the right half
    assert straight[:, :, 1].max() < 150  # from the upper half
    assert all(array.flags.c_contiguous and array.flags.writeable for array in (straight, mirrored))
    torch.from_numpy(mirrored)  # rejects negative strides


def test_pixels_do_not_depend_on_the_native_decoder(monkeypatch):
    crop = RandomResizedCrop(48)
    ours = [crop.transform(JPEG, random.Random(seed)) for seed in range(40)]
    without_native(monkeypatch)
    np.testing.assert_array_equal(ours, [crop.transform(JPEG, random.Random(seed)) for seed in range(40)])


def test_large_parts_are_averaged():
    noise = np.random.default_rng(0).integers(0, 2, (400, 400, 1)).repeat(3, 2).astype(np.uint8) * 255
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "PNG")
    small = RandomResizedCrop(40, scale=(1.0, 1.0), ratio=(1.0, 1.0)).transform(
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
    alone = (
        tarmac.Dataset(path).decode(only="cls").map(crop).to_tuple("jpg", "cls")
    )  # a crop is random anyway
    for (images, _), (others, _) in zip(first, tarmac.Loader(alone, 5, seed=3), strict=True):
        np.testing.assert_array_equal(images, others)
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
        ("size", {"size": (224, 224)}),
        ("scale", {"size": 8, "scale": (0, 1)}),
        ("scale", {"size": 8, "scale": (0.5, 1.1)}),
        ("ratio", {"size": 8, "ratio": (2, 1)}),
        ("ratio", {"size": 8, "ratio": (1, float("inf"))}),
        ("size", {"size": True}),
        ("scale", {"size": 8, "scale": 0.5}),
        ("scale", {"size": 8, "scale": "ab"}),
        ("mirror", {"size": 8, "mirror": 2}),
        ("mirror", {"size": 8, "mirror": "no"}),
        ("fields", {"size": 8, "fields": ["jpg"]}),
    ):
        with pytest.raises(UsageError, match=f"`{field}`"):
            RandomResizedCrop(**bad)


@pytest.mark.parametrize(("width", "height"), [(120, 90), (90, 120), (33, 200), (7, 5), (1, 1), (64, 64)])
def test_sizes_of_results(width, height):
    image = np.ascontiguousarray(np.resize(gradient(), (height, width, 3)))
    data = simplejpeg.encode_jpeg(image, 90)
    shorter = min(width, height)
    for given_, name in ((data, "bytes"), (image, "array"), (Image.fromarray(image), "Pillow")):
        resized = np.asarray(Resize(20).transform(given_))
        assert resized.shape == (20 * height // shorter, 20 * width // shorter, 3), name
        assert np.asarray(Resize((31, 17)).transform(given_)).shape == (17, 31, 3), name
        assert np.asarray(ResizeCenterCrop(21).transform(given_)).shape == (21, 21, 3), name
        assert np.asarray(ResizeCenterCrop(21, shorter=21).transform(given_)).shape == (21, 21, 3), name


def test_the_centre_is_that_of_the_resized_image():
    for data in (JPEG, gradient()):
        resized = Resize(64).transform(data)
        assert resized.shape == (64, 85, 3)
        centre = ResizeCenterCrop(56).transform(data)
        np.testing.assert_array_equal(centre, resized[4:60, 14:70])
    assert ResizeCenterCrop(224).shorter == 256
    np.testing.assert_array_equal(ResizeCenterCrop(np.int64(56)).transform(data), centre)
    np.testing.assert_array_equal(Resize((np.int32(85), 64)).transform(data), resized)


@pytest.fixture(scope="module")
def photos():
    return natural_jpegs(4)


@pytest.mark.parametrize(
    "step", [RandomResizedCrop(224), RandomResizedCrop(96), Resize(256), ResizeCenterCrop(224)]
)
def test_natural_images_are_close_to_averages_of_whole_images(photos, step):
    note, fault = quality(step, photos)
    assert not fault, note


@pytest.mark.parametrize("step", [RandomResizedCrop(224, exact=True), ResizeCenterCrop(224, exact=True)])
def test_exact_results_are_averages_of_whole_images(photos, step):
    for seed, photo in enumerate(photos):
        region = step.region(1024, 768, random.Random(seed))
        result = step.transform(photo, random.Random(seed))
        expected = area_resized(photo, region)
        assert decibels(result, expected[:, ::-1] if region.mirrored else expected) > 55


@pytest.mark.parametrize("spec", [*SPECS, "pil", "pill", "pilrgba", "torch"])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_decoding_at_a_size(tmp_path, spec, format):
    stream = io.BytesIO()
    Image.fromarray(gradient()).save(stream, format, quality=95)
    field = {"JPEG": "jpg", "PNG": "png"}[format]
    path = str(tmp_path / "a.tar")
    with tarmac.TarWriter(path, index=True) as writer:
        writer.write({"__key__": "a", field: stream.getvalue(), "cls": 3})
    whole = tarmac.Dataset(path).decode(spec)[0][field]
    for dataset in (tarmac.Dataset(path), tarmac.WebDataset(path, shardshuffle=False)):
        [small] = [sample[field] for sample in dataset.decode(spec, size=30)]
        [other] = [sample[field] for sample in dataset.decode(spec, size=(50, 20))]
        assert type(small) is type(other) is type(whole)
        values, all_values = np.asarray(small, np.float64), np.asarray(whole, np.float64)
        assert abs(values.mean() - all_values.mean()) < 0.01 * (all_values.max() - all_values.min())
        if isinstance(small, Image.Image):
            assert (small.size, other.size, small.mode) == ((40, 30), (50, 20), whole.mode)
            continue
        assert small.dtype == whole.dtype
        axes = slice(-2, None) if "torch" in spec else slice(0, 2)
        assert (tuple(small.shape[axes]), tuple(other.shape[axes])) == ((30, 40), (20, 50))
        assert small.ndim == whole.ndim


def test_wrong_ways_to_decode_at_a_size(tmp_path):
    path = str(tmp_path / "a.tar")
    with tarmac.TarWriter(path, index=True) as writer:
        writer.write({"__key__": "a", "jpg": JPEG})
    for dataset in (tarmac.Dataset(path), tarmac.WebDataset(path, shardshuffle=False)):
        with pytest.raises(UsageError, match="requires a format of images"):
            dataset.decode(size=30)
        with pytest.raises(UsageError, match="`size`"):
            dataset.decode("rgb8", size=0)
    with pytest.raises(DecodeFailed, match="jpg"):
        tarmac.Dataset(path).map_dict(jpg=lambda data: data[:300]).decode("rgb8", size=30)[0]


@pytest.mark.parametrize("thin", [(1, 3000), (3000, 1)])
def test_long_images_do_not_become_huge(thin):
    data = simplejpeg.encode_jpeg(np.zeros((*thin, 3), np.uint8), 90)
    limits = Limits(pixels=1_000_000)
    for image in (data, np.zeros((*thin, 3), np.uint8)):
        with pytest.raises(DecompressionBomb, match="pixels"):
            Resize(100, limits=limits).transform(image)
        assert ResizeCenterCrop(100, limits=limits).transform(image).shape == (100, 100, 3)


def test_invalid_arguments_of_the_other_steps():
    for field, step, bad in (
        ("size", Resize, {"size": 0}),
        ("size", Resize, {"size": (3, 4, 5)}),
        ("size", ResizeCenterCrop, {"size": -1}),
        ("shorter", ResizeCenterCrop, {"size": 9, "shorter": 8}),
        ("shorter", ResizeCenterCrop, {"size": 9, "shorter": "10"}),
    ):
        with pytest.raises(UsageError, match=f"`{field}`"):
            step(**bad)


def test_the_steps_in_both_doors(tmp_path):
    path = str(tmp_path / "a.tar")
    with tarmac.TarWriter(path, index=True) as writer:
        for number in range(6):
            writer.write({"__key__": f"{number:03d}", "jpg": JPEG, "cls": number})
    for step in (
        tarmac.Resize((24, 24)),
        tarmac.ResizeCenterCrop(24),
        tarmac.ResizeCenterCrop(24, exact=True),
    ):
        ds = tarmac.Dataset(path).decode(only="cls").map(step).to_tuple("jpg", "cls")
        [(images, _)] = tarmac.Loader(ds, 6, shuffle=False)
        streamed = list(tarmac.WebDataset(path, shardshuffle=False).map(pickle.loads(pickle.dumps(step))))
        np.testing.assert_array_equal(images, [sample["jpg"] for sample in streamed])
        assert images.shape == (6, 24, 24, 3)


def test_repr():
    text = "RandomResizedCrop(224, scale=(0.5, 1.0), ratio=(0.75, 1.3333333333333333), mirror=0.5)"
    assert repr(tarmac.RandomResizedCrop(224, scale=(0.5, 1.0))) == text
    assert repr(tarmac.Resize(256)) == "Resize(256)"
    assert repr(tarmac.ResizeCenterCrop(224)) == "ResizeCenterCrop(224, shorter=256)"
