"""Resized arrays are averages of areas, or interpolated, whatever their size, type and layout."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tarmac.codecs import accelerator
from tarmac.codecs.decoded import image_size, resize_image
from tarmac.codecs.resize import Region, Span, check_size, fit, resize_array, weigh
from tarmac.errors import UsageError


@pytest.fixture(params=["native", "NumPy"], autouse=True)
def resizing(request, monkeypatch):
    if request.param == "NumPy":
        monkeypatch.setattr(accelerator, "pixels", lambda: None)
    else:
        pytest.importorskip("tarmac_native.pixels")
        assert accelerator.pixels()
    return request.param


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@st.composite
def spans(draw, longest=60):
    start = draw(st.integers(0, longest - 1))
    stop = draw(st.integers(start + 1, longest))
    size = draw(st.integers(1, 90))
    first = draw(st.integers(0, size - 1))
    return Span(start, stop, size, first, draw(st.integers(first + 1, size)))


def shares(span, scale=8):
    """Return the share of every pixel in every pixel of the result, by definition."""
    pixels = np.arange(61)
    start, step = span.start * scale / 8, (span.stop - span.start) * scale / 8 / span.size
    left = start + np.arange(span.first, span.last)[:, None] * step
    if step >= 1:
        return (np.minimum(left + step, pixels + 1) - np.maximum(left, pixels)).clip(0) / step
    middle = (left + step / 2 - 0.5).clip(span.start, span.stop - 1)
    return (1 - abs(middle - pixels)).clip(0)


@given(spans(), st.sampled_from([1, 2, 4, 8]))
def test_weights_are_the_shares_of_pixels(span, scale):
    if scale < 8 and (span.stop - span.start) * scale < 8 * span.size:
        scale = 8  # images are never decoded smaller than the result
    axis = weigh(span, scale)
    expected = shares(span, scale)
    assert axis.weights.shape[0] == len(axis.first) == span.wanted
    assert (axis.weights.sum(1) == 256).all()
    assert span.start * scale // 8 <= axis.begin
    assert axis.end <= -(-span.stop * scale // 8)
    dense = np.zeros_like(expected)
    for row, (first, weights) in enumerate(zip(axis.first, axis.weights, strict=True)):
        dense[row, first : first + len(weights)] = weights / 256
    assert abs(dense - expected).max() <= 1 / 256 + 1e-9


@settings(max_examples=200)
@given(spans(), spans(), st.integers(1, 5), st.booleans())
def test_any_part_at_any_size(across, down, channels, mirrored):
    image = noise(60, 60, channels)
    result = resize_array(image, Region(across, down, mirrored))
    expected = np.einsum("yr,xc,rcd->yxd", shares(down)[:, :60], shares(across)[:, :60], image)
    assert result.dtype == np.uint8
    assert result.shape == (down.wanted, across.wanted, channels)
    assert abs(result - (expected[:, ::-1] if mirrored else expected)).max() < 4


@pytest.mark.parametrize("shape", [(90, 120, 3), (90, 120, 4), (90, 120), (90, 120, 1), (90, 120, 70)])
def test_as_opencv_averages_areas(shape):
    image = noise(*shape)
    result = resize_array(image, fit(120, 90, (50, 31)))
    expected = (
        cv2.resize(image, (50, 31), interpolation=cv2.INTER_AREA)
        if image.ndim == 2 or shape[2] <= 4
        else np.stack(
            [cv2.resize(plane, (50, 31), interpolation=cv2.INTER_AREA) for plane in image.transpose(2, 0, 1)],
            2,
        )
    )
    assert result.shape == (31, 50, *shape[2:])
    assert abs(result.astype(int) - expected.reshape(result.shape)).max() <= 2


def test_the_same_size_changes_nothing():
    image = noise(33, 47, 3)
    np.testing.assert_array_equal(resize_array(image, fit(47, 33, (47, 33))), image)
    mirrored = fit(47, 33, (47, 33))._replace(mirrored=True)
    np.testing.assert_array_equal(resize_array(image, mirrored), image[:, ::-1])


def test_even_colours_stay_even():
    for value in range(256):
        image = np.full((7, 11, 3), value, np.uint8)
        for size in ((5, 3), (11, 7), (29, 31), (1, 1)):
            assert (resize_array(image, fit(11, 7, size)) == value).all()


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float16, np.float32, np.float64, bool])
def test_other_types_stay(dtype):
    image = (noise(40, 60, 3) > 127) if dtype is bool else noise(40, 60, 3).astype(dtype)
    smooth = np.kron(image[:10, :15], np.ones((4, 4, 1))).astype(dtype)
    result = resize_array(smooth, fit(60, 40, (15, 10)))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, image[:10, :15])


def test_strided_arrays():
    image = noise(80, 60, 3)
    for view in (image[::2], image[:, ::-1], image.transpose(1, 0, 2), image[..., ::-1]):
        height, width = view.shape[:2]
        region = fit(width, height, (17, 13))
        np.testing.assert_array_equal(resize_array(view, region), resize_array(view.copy(), region))


@pytest.mark.parametrize(
    "value", [np.zeros((40, 60, 3)), torch.zeros((3, 40, 60)), Image.new("RGB", (60, 40))]
)
def test_sizes_of_images(value):
    assert image_size(value) == (60, 40)
    assert image_size(resize_image(value, fit(60, 40, 20))) == (30, 20)


def test_values_without_a_size():
    for value in (None, 3, "text", np.zeros(3), np.zeros((0, 4, 3)), torch.zeros(1, 2, 3, 4)):
        assert image_size(value) is None


def test_pillow_images_take_the_same_part():
    image = cv2.resize(noise(8, 8, 3), (80, 80))
    region = Region(Span(10, 70, 30, 5, 25), Span(0, 80, 40, 10, 30), mirrored=True)
    for size in (1, 3):
        ours = resize_array(image, region._replace(across=Span(10, 70, 30 * size, 5, 25)))
        pillow = resize_image(Image.fromarray(image), region._replace(across=Span(10, 70, 30 * size, 5, 25)))
        assert pillow.size == (20, 20)
        assert abs(np.asarray(pillow).astype(int) - ours).mean() < 3


def test_sizes():
    assert fit(400, 300, 30) == fit(400, 300, (40, 30))
    assert fit(300, 401, 30).down.size == 40  # rounded down, as in torchvision
    assert check_size([3, 4]) == (3, 4)
    for bad in (0, -1, 2.5, "big", (1, 2, 3), (4, 0), ()):
        with pytest.raises(UsageError, match="`size`"):
            check_size(bad)


def test_invalid_arguments_of_the_native_module():
    native = pytest.importorskip("tarmac_native.pixels")
    image, out = noise(10, 12, 3), bytearray(4 * 5 * 3)
    across, down = weigh(Span.of(0, 12, 5)), weigh(Span.of(0, 10, 4))
    native.resize(image, 12, 3, across, down, out)
    first, weights = across
    for arguments in (
        (image, 11, 3, across, down, out),
        (image, 0, 3, across, down, out),
        (image, 12, 0, across, down, out),
        (image, 12, 65, across, down, out),
        (image, 12, 3, across, down, bytearray(9)),
        (image, 12, 3, down, across, out),
        (image[:9], 12, 3, across, down, out),
        (image, 12, 3, (first - 1, weights), down, out),
        (image, 12, 3, (first + 1, weights), down, out),
        (image, 12, 3, (first, weights * 2), down, out),
        (image, 12, 3, (first[:0], weights), down, out),
        (image, 12, 3, (first, weights[:0]), down, out),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            native.resize(*arguments)
    with pytest.raises(TypeError):
        native.resize(image, 12, 3, across, down, b"not writable")
