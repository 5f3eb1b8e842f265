"""A decoded part of an image equals that part of the whole image, at every scale."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from harness import rounds
from tarmac.codecs import accelerator, imagehandler
from tarmac.codecs.boxes import OpenImage
from tarmac.codecs.resize import Region, Span
from tarmac.errors import DecodeFailed, DecompressionBomb
from tarmac.limits import Limits

SCALES = (1, 2, 4, 8)


def random_image(width, height, seed=0):
    rng = np.random.default_rng(seed)
    smooth = np.kron(rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3)), np.ones((8, 8, 1)))
    return (smooth[:height, :width] + rng.normal(0, 9, (height, width, 3))).clip(0, 255).astype(np.uint8)


def jpeg(array, subsampling="420", quality=90):
    if subsampling == "Gray":
        return simplejpeg.encode_jpeg(array[:, :, :1].copy(), quality, colorspace="GRAY")
    return simplejpeg.encode_jpeg(array, quality, colorsubsampling=subsampling)


def saved(array, format, **options):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format, **options)
    return stream.getvalue()


def inside(draw, size):
    first = draw.draw(st.integers(0, size - 1))
    return first, draw.draw(st.integers(first + 1, size))


def scaled(size, scale):
    return -(-size * scale // 8)


def whole(data, scale):
    """Decode a whole JPEG at a scale, as the native decoder must decode parts of it."""
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    size = {"min_width": scaled(width, scale), "min_height": scaled(height, scale)}
    return simplejpeg.decode_jpeg(data, fastupsample=True, **size)


def part(image, box, scale=8):
    """Return exactly the pixels of a box."""
    pixels, left, top = image.part(box, scale)
    assert image._pixels is None  # was not decoded whole
    assert left <= box[0]
    assert top <= box[1]
    return pixels[box[1] - top : box[3] - top, box[0] - left : box[2] - left]


def all_of(image, wide, high):
    return image.resized(Region(Span.of(0, image.width, wide), Span.of(0, image.height, high)))


@pytest.fixture(params=["in part", "whole"])
def decoding(request, monkeypatch):
    if request.param == "whole":
        monkeypatch.setattr(accelerator, "jpeg", lambda: None)
        monkeypatch.setattr(accelerator, "pixels", lambda: None)
    else:
        pytest.importorskip("tarmac_native.jpeg")
        assert accelerator.jpeg(), "tarmac-native is of another version: pip install ./native"
        assert accelerator.pixels()
    return request.param


@settings(max_examples=400, deadline=None)
@given(
    st.integers(1, 120),
    st.integers(1, 120),
    st.sampled_from(["444", "422", "420", "440", "411", "Gray"]),
    st.integers(5, 100),
    st.sampled_from(SCALES),
    st.data(),
)
def test_a_part_equals_that_part_of_the_whole(width, height, subsampling, quality, scale, draw):
    pytest.importorskip("tarmac_native.jpeg")
    scale = 8 if max(width, height) < 8 else scale
    data = jpeg(random_image(width, height), subsampling, quality)
    (left, right), (top, bottom) = inside(draw, scaled(width, scale)), inside(draw, scaled(height, scale))
    image = OpenImage(data)
    assert (image.width, image.height) == (width, height)
    pixels = part(image, (left, top, right, bottom), scale)
    np.testing.assert_array_equal(pixels, whole(data, scale)[top:bottom, left:right], strict=True)


KINDS = {
    "progressive": {"progressive": True},
    "optimised": {"optimize": True},
    "restarts": {"restart_marker_blocks": 3},
    "restart rows": {"restart_marker_rows": 1},
    "4:4:4": {"subsampling": 0},
    "lowest quality": {"quality": 1},
    "highest quality": {"quality": 100},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", SCALES)
def test_parts_of_other_kinds_of_jpegs(kind, scale):
    pytest.importorskip("tarmac_native.jpeg")
    for seed in range(6):
        data = saved(random_image(151, 133, seed), "JPEG", **{"quality": 80, **KINDS[kind]})
        rng = np.random.default_rng(seed)
        across, down = rng.choice(scaled(151, scale), 2, False), rng.choice(scaled(133, scale), 2, False)
        left, top, right, bottom = (int(f(axis)) for f in (min, max) for axis in (across, down))
        pixels = part(OpenImage(data), (left, top, right, bottom), scale)
        np.testing.assert_array_equal(pixels, whole(data, scale)[top:bottom, left:right], strict=True)


def test_parts_of_a_noisy_image_with_long_codes():
    pytest.importorskip("tarmac_native.jpeg")
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3)).astype(np.uint8)
    for quality in (100, 60):
        for data in (jpeg(noise, "420", quality), saved(noise, "JPEG", quality=quality, optimize=True)):
            np.testing.assert_array_equal(
                part(OpenImage(data), (8, 100, 290, 200)), whole(data, 8)[100:200, 8:290]
            )


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.sampled_from(["444", "422", "420", "Gray"]),
    st.integers(1, 40),
    st.integers(1, 40),
    st.booleans(),
    st.data(),
)
def test_results_do_not_depend_on_the_native_modules(width, height, subsampling, wide, high, mirrored, draw):
    pytest.importorskip("tarmac_native.jpeg")
    (left, right), (top, bottom) = inside(draw, width), inside(draw, height)
    region = Region(Span.of(left, right, wide), Span.of(top, bottom, high), mirrored)
    data = jpeg(random_image(width, height), subsampling)
    ours = OpenImage(data).resized(region)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerator, "jpeg", lambda: None)
        patch.setattr(accelerator, "pixels", lambda: None)
        np.testing.assert_array_equal(ours, OpenImage(data).resized(region), strict=True)
    assert ours.shape == (high, wide, 3)


@pytest.mark.parametrize(
    ("size", "scale"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 4), (64, 4), (65, 8), (128, 8), (200, 8)]
)
def test_the_smallest_scale_with_enough_pixels_is_chosen(size, scale):
    image = OpenImage(jpeg(random_image(128, 160)))
    assert image.scale(Region(Span.of(0, 128, size), Span.of(0, 160, size))) == scale
    assert OpenImage(saved(random_image(128, 160), "PNG")).scale(all_region(128, 160, size)) == 8


def all_region(width, height, size):
    return Region(Span.of(0, width, size), Span.of(0, height, size))


@pytest.mark.parametrize("format", ["PNG", "WEBP", "GIF"])
def test_other_formats_are_decoded_whole(decoding, format):
    data = saved(random_image(60, 40), format)
    image = OpenImage(data)
    assert (image.width, image.height) == (60, 40)
    np.testing.assert_array_equal(all_of(image, 60, 40), imagehandler("rgb8")(f".{format.lower()}", data))


def test_exact_images_are_decoded_whole_with_smooth_colours(decoding):
    data = jpeg(random_image(60, 40))
    np.testing.assert_array_equal(
        all_of(OpenImage(data, exact=True), 60, 40), imagehandler("rgb8")(".jpg", data)
    )
    assert (all_of(OpenImage(data), 60, 40) != imagehandler("rgb8")(".jpg", data)).any()


def test_cmyk_is_decoded_by_pillow(decoding):
    data = saved(np.zeros((20, 30, 4), np.uint8), "PNG")
    stream = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("CMYK").save(stream, "JPEG")
    assert all_of(OpenImage(stream.getvalue()), 15, 10).shape == (10, 15, 3)


def test_damage(decoding):
    data = jpeg(random_image(200, 200))
    with pytest.raises(DecodeFailed):
        OpenImage(b"no image at all")
    for cut in (len(data) // 2, 700):
        try:
            pixels = all_of(OpenImage(data[:cut]), 200, 200)
        except (DecodeFailed, OSError):
            continue  # as when the whole image is decoded
        np.testing.assert_array_equal(pixels, imagehandler("rgb8")(".jpg", data[:cut]))


def test_truncated_jpegs_are_not_decoded_in_part():
    data = jpeg(random_image(200, 200))
    with pytest.raises(OSError, match="truncated"):
        imagehandler("rgb8", fast=True)(".jpg", data[:-2])
    with pytest.raises(OSError, match="truncated"):
        OpenImage(data[:-2])  # although most boxes could be decoded
    with_tail = OpenImage(data + b"trailing bytes")
    assert all_of(with_tail, 9, 9).shape == (9, 9, 3)


def test_pillow_decides_about_images_that_end_early(decoding):
    data = jpeg(random_image(200, 200))
    cut = data[: len(data) // 2].rstrip(b"\xff") + b"\xff\xd9"
    np.testing.assert_array_equal(all_of(OpenImage(cut), 200, 200), imagehandler("rgb8")(".jpg", cut))


def test_too_many_pixels(decoding):
    with pytest.raises(DecompressionBomb, match="200x200"):
        OpenImage(jpeg(random_image(200, 200)), Limits(pixels=30_000))


def test_invalid_arguments_of_the_native_decoder():
    native = pytest.importorskip("tarmac_native.jpeg")
    data, out = jpeg(random_image(40, 30)), bytearray(40 * 30 * 3)
    assert native.decode_box(data, 8, (0, 0, 40, 30), out) == (0, 40)
    assert native.decode_box(data, 4, (0, 0, 20, 15), out) == (0, 20)
    for scale, box, why in [
        (8, (0, 0, 41, 30), "40x30"),
        (8, (0, 0, 40, 31), "40x30"),
        (4, (0, 0, 21, 15), "20x15"),
        (8, (5, 5, 5, 9), "empty"),
        (8, (2**32 - 1, 0, 5, 9), "empty"),
        (0, (0, 0, 1, 1), "scale"),
        (9, (0, 0, 1, 1), "scale"),
    ]:
        with pytest.raises(ValueError, match=why):
            native.decode_box(data, scale, box, out)
    with pytest.raises(ValueError, match="100 bytes"):
        native.decode_box(data, 8, (0, 0, 40, 30), bytearray(100))
    with pytest.raises(TypeError):
        native.decode_box(data, 8, (0, 0, 40, 30), b"not writable")
    for bad in (
        b"",
        b"\xff\xd8\xff",
        data[:300],
        data[: len(data) // 2],
        data[: len(data) // 2] + b"\xff\xd9",
        data[:200] + bytes(200) + data[400:],
    ):
        with pytest.raises(ValueError, match=r"\w"):
            native.decode_box(bad, 8, (0, 0, 40, 30), out)


def test_random_damage_is_an_error_or_the_pixels_of_the_whole():
    native = pytest.importorskip("tarmac_native.jpeg")
    rng = np.random.default_rng(7)
    outcomes = set()
    for number in range(rounds(1200)):
        array = random_image(90, 70, number % 20)
        data = bytearray(
            jpeg(array, ["444", "420"][number % 2])
            if number % 3
            else saved(array, "JPEG", quality=80, progressive=number % 2 == 0)
        )
        for position in rng.integers(2, len(data), 1 + number % 4):
            data[position] = rng.integers(256)
        scale = SCALES[number % 4]
        left, top = (int(value) for value in rng.integers(0, 60, 2) * scale // 8)
        box = left, top, left + 2 * scale, top + scale
        out = np.zeros(60_000, np.uint8)
        try:
            first, width = native.decode_box(bytes(data), scale, box, out)
        except ValueError:
            outcomes.add("error")
            continue
        try:
            expected = whole(bytes(data), scale)
        except ValueError:
            outcomes.add("damage outside the part")
            continue
        outcomes.add("pixels")
        pixels = out[: scale * width * 3].reshape(scale, width, 3)[:, left - first :][:, : 2 * scale]
        np.testing.assert_array_equal(pixels, expected[top : top + scale, left : left + 2 * scale])
    assert outcomes == {"pixels", "error", "damage outside the part"}


def test_another_version_of_the_native_modules_is_ignored(monkeypatch):
    native = pytest.importorskip("tarmac_native.jpeg")
    accelerator._module.cache_clear()
    monkeypatch.setattr(native, "INTERFACE", 1)
    assert accelerator.jpeg() is None
    accelerator._module.cache_clear()
    monkeypatch.undo()
    assert accelerator.jpeg() is native


def test_whole_images_from_threads(decoding):
    from concurrent.futures import ThreadPoolExecutor

    images = [jpeg(random_image(120, 90, seed)) for seed in range(16)]
    regions = [Region(Span.of(seed, 60 + seed, 24), Span.of(seed, 70, 24)) for seed in range(16)]

    def results(order):
        with ThreadPoolExecutor(8) as pool:
            both = pool.map(lambda i: OpenImage(images[i]).resized(regions[i]), order)
        return dict(zip(order, both, strict=True))

    order = list(range(16))
    first = results(order)
    random.Random(0).shuffle(order)
    second = results(order)
    for number in order:
        np.testing.assert_array_equal(first[number], second[number])
