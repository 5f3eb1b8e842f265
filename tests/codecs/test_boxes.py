"""A decoded part of an image equals that part of the whole image."""

from __future__ import annotations

import io

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from harness import rounds
from tarmac.codecs import boxes, imagehandler
from tarmac.codecs.boxes import OpenImage
from tarmac.errors import DecodeFailed, DecompressionBomb
from tarmac.limits import Limits


def random_image(width, height, seed=0):
    rng = np.random.default_rng(seed)
    smooth = np.kron(rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3)), np.ones((8, 8, 1)))
    return (smooth[:height, :width] + rng.normal(0, 9, (height, width, 3))).clip(0, 255).astype(np.uint8)


def jpeg(array, subsampling="420", quality=90):
    return simplejpeg.encode_jpeg(array, quality, colorsubsampling=subsampling)


def saved(array, format, **options):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format, **options)
    return stream.getvalue()


def inside(draw, size):
    first = draw.draw(st.integers(0, size - 1))
    return first, draw.draw(st.integers(first + 1, size))


@pytest.fixture(params=["in part", "whole"])
def decoding(request, monkeypatch):
    if request.param == "whole":
        monkeypatch.setattr(boxes, "_native", lambda: None)
    else:
        pytest.importorskip("tarmac_native.jpeg")
    return request.param


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 120),
    st.integers(1, 120),
    st.sampled_from(["444", "422", "420", "440", "411", "Gray"]),
    st.integers(5, 100),
    st.data(),
)
def test_a_part_equals_that_part_of_the_whole(width, height, subsampling, quality, draw):
    pytest.importorskip("tarmac_native.jpeg")
    array = random_image(width, height)
    if subsampling == "Gray":
        data = simplejpeg.encode_jpeg(array[:, :, :1].copy(), quality, colorspace="GRAY")
    else:
        data = jpeg(array, subsampling, quality)
    (left, right), (top, bottom) = inside(draw, width), inside(draw, height)
    image = OpenImage(data)
    assert (image.width, image.height) == (width, height)
    part = image.pixels((left, top, right, bottom))
    assert image._pixels is None  # decoded in part
    whole = imagehandler("rgb8", fast=True)(".jpg", data)
    np.testing.assert_array_equal(part, whole[top:bottom, left:right], strict=True)


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_progressive_jpegs(seed):
    pytest.importorskip("tarmac_native.jpeg")
    data = saved(random_image(150, 130, seed), "JPEG", quality=80, progressive=True)
    rng = np.random.default_rng(seed)
    (left, right), (top, bottom) = sorted(rng.choice(150, 2, False)), sorted(rng.choice(130, 2, False))
    image = OpenImage(data)
    part = image.pixels((int(left), int(top), int(right), int(bottom)))
    assert image._pixels is None
    whole = imagehandler("rgb8", fast=True)(".jpg", data)
    np.testing.assert_array_equal(part, whole[top:bottom, left:right], strict=True)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF"])
def test_other_formats_are_decoded_whole(decoding, format):
    data = saved(random_image(60, 40), format)
    image = OpenImage(data)
    assert (image.width, image.height) == (60, 40)
    expected = imagehandler("rgb8")(f".{format.lower()}", data)[5:30, 10:50]
    np.testing.assert_array_equal(image.pixels((10, 5, 50, 30)), expected)


def test_cmyk_is_decoded_by_pillow(decoding):
    data = saved(np.zeros((20, 30, 4), np.uint8), "PNG")
    stream = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("CMYK").save(stream, "JPEG")
    assert OpenImage(stream.getvalue()).pixels((0, 0, 30, 20)).shape == (20, 30, 3)


def test_damage(decoding):
    data = jpeg(random_image(200, 200))
    with pytest.raises(DecodeFailed):
        OpenImage(b"no image at all")
    for cut in (len(data) // 2, 700):
        try:
            pixels = OpenImage(data[:cut]).pixels((10, 150, 190, 190))
        except (DecodeFailed, OSError):
            continue  # as when the whole image is decoded
        np.testing.assert_array_equal(
            pixels, imagehandler("rgb8", fast=True)(".jpg", data[:cut])[150:190, 10:190]
        )


def test_truncated_jpegs_are_not_decoded_in_part():
    data = jpeg(random_image(200, 200))
    with pytest.raises(OSError, match="truncated"):
        imagehandler("rgb8", fast=True)(".jpg", data[:-2])
    with pytest.raises(OSError, match="truncated"):
        OpenImage(data[:-2])  # although most boxes could be decoded
    with_tail = OpenImage(data + b"trailing bytes")
    np.testing.assert_array_equal(with_tail.pixels((0, 0, 9, 9)), OpenImage(data).pixels((0, 0, 9, 9)))


def test_too_many_pixels(decoding):
    with pytest.raises(DecompressionBomb, match="200x200"):
        OpenImage(jpeg(random_image(200, 200)), Limits(pixels=30_000))


def test_invalid_arguments_of_the_native_decoder():
    native = pytest.importorskip("tarmac_native.jpeg")
    data, out = jpeg(random_image(40, 30)), bytearray(40 * 30 * 3)
    assert native.decode_box(data, (0, 0, 40, 30), out, True) == (0, 40)
    for box, why in [
        ((0, 0, 41, 30), "40x30"),
        ((0, 0, 40, 31), "40x30"),
        ((5, 5, 5, 9), "empty"),
        ((2**32 - 1, 0, 5, 9), "empty"),
    ]:
        with pytest.raises(ValueError, match=why):
            native.decode_box(data, box, out, True)
    with pytest.raises(ValueError, match="100 bytes"):
        native.decode_box(data, (0, 0, 40, 30), bytearray(100), True)
    with pytest.raises(TypeError):
        native.decode_box(data, (0, 0, 40, 30), b"not writable", True)
    for bad in (
        b"",
        b"\xff\xd8\xff",
        data[:300],
        data[: len(data) // 2],
        data[:200] + bytes(200) + data[400:],
    ):
        with pytest.raises(ValueError, match=r"\w"):
            native.decode_box(bad, (0, 0, 40, 30), out, True)


def test_random_damage_is_an_error_or_pixels():
    native = pytest.importorskip("tarmac_native.jpeg")
    rng = np.random.default_rng(7)
    outcomes = set()
    for number in range(rounds(600)):
        array = random_image(90, 70, number)
        data = bytearray(
            jpeg(array, ["444", "420"][number % 2])
            if number % 3
            else saved(array, "JPEG", quality=80, progressive=True)
        )
        for position in rng.integers(2, len(data), 1 + number % 4):
            data[position] = rng.integers(256)
        left, top = (int(value) for value in rng.integers(0, 60, 2))
        try:
            native.decode_box(bytes(data), (left, top, left + 20, top + 9), bytearray(60_000), True)
            outcomes.add("pixels")
        except ValueError:
            outcomes.add("error")
    assert outcomes == {"pixels", "error"}


@pytest.mark.parametrize("width", [1, 2, 5, 8])
def test_mirrors(decoding, width):
    array = random_image(width, 7)
    np.testing.assert_array_equal(boxes.mirror(array.copy()), array[:, ::-1])
    np.testing.assert_array_equal(
        boxes.mirror(random_image(20, 7)[:, :width]), random_image(20, 7)[:, :width][:, ::-1]
    )


def test_the_native_mirror_rejects_invalid_rows():
    native = pytest.importorskip("tarmac_native.jpeg")
    for size, width in [(10, 3), (9, 0)]:
        with pytest.raises(ValueError, match=rf"\b{size} .*\b{width} "):
            native.mirror(bytearray(size), width)
