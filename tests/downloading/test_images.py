"""Pictures: their size, their orientation, their colours and their true type; what is damaged is refused."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from harness.web import picture
from tarmac.downloading.images import Pictures, Rejected, largest_size, prepare
from tarmac.errors import UsageError
from tarmac.limits import Limits


def pixels(data):
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def saved(image, format="PNG", **more):
    stream = io.BytesIO()
    image.save(stream, format, **more)
    return stream.getvalue()


SIZES = {
    # of 160 x 120 pixels to 60: what the sides become
    "keep_ratio": (80, 60),
    "keep_ratio_largest": (60, 45),
    "center_crop": (60, 60),
    "border": (60, 60),
    "no": (160, 120),
}


@pytest.mark.parametrize("mode", SIZES)
@pytest.mark.parametrize("format", ["jpg", "png", "webp"])
def test_modes_and_formats(mode, format):
    result = prepare(picture(1, 160, 120), Pictures(size=60, resize=mode, format=format))
    assert (result.width, result.height) == SIZES[mode]
    assert (result.original_width, result.original_height, result.extension) == (160, 120, format)
    with Image.open(io.BytesIO(result.data)) as image:
        assert image.size == SIZES[mode]
        assert image.format == {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[format]


@pytest.mark.parametrize("mode", SIZES)
def test_small_pictures_are_enlarged_only_if_that_is_wanted(mode):
    data = picture(1, 40, 30)
    assert prepare(data, Pictures(size=60, resize=mode, only_if_bigger=True)).width == 40
    large = prepare(data, Pictures(size=60, resize=mode))
    assert (large.width, large.height) == (40, 30) if mode == "no" else max(large.width, large.height) >= 60


def test_a_border_is_white_and_a_crop_is_the_middle():
    black = saved(Image.new("RGB", (100, 50)))
    bordered = pixels(prepare(black, Pictures(size=40, resize="border", format="png")).data)
    assert (bordered[:10] == 255).all()
    assert (bordered[10:30] == 0).all()
    assert (bordered[30:] == 255).all()
    halves = Image.new("RGB", (100, 50))
    halves.paste((255, 0, 0), (25, 0, 75, 50))
    cropped = pixels(prepare(saved(halves), Pictures(size=50, resize="center_crop", format="png")).data)
    assert (cropped == (255, 0, 0)).all()


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("mode", ["keep_ratio", "center_crop"])
def test_exif_orientation_is_applied(turn, mode):
    exif = Image.Exif()
    exif[274] = turn
    exif[271] = "A maker"
    with Image.open(io.BytesIO(picture(5, 160, 120))) as image:
        data = saved(image, "JPEG", quality=95, exif=exif)
    upright = saved(ImageOps.exif_transpose(Image.open(io.BytesIO(data))), "PNG")
    how = Pictures(size=60, resize=mode, format="png", exact=True)
    result, expected = prepare(data, how), prepare(upright, how)
    assert (result.original_width, result.original_height) == (
        expected.original_width,
        expected.original_height,
    )
    assert np.abs(pixels(result.data) - pixels(expected.data)).max() <= 3
    assert result.exif["Make"] == "A maker"
    kept = prepare(data, Pictures(skip_reencode=True))
    assert (kept.data == data) == (turn == 1)  # else readers that ignore EXIF would show it lying


def test_alpha_becomes_white():
    clear = Image.new("RGBA", (40, 30), (255, 0, 0, 0))
    clear.paste((0, 0, 255, 255), (0, 0, 20, 30))
    shown = pixels(prepare(saved(clear), Pictures(format="png")).data)
    assert (shown[:, :20] == (0, 0, 255)).all()
    assert (shown[:, 20:] == 255).all()
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([0, 255, 0])
    shown = pixels(prepare(saved(palette, transparency=0), Pictures(format="png")).data)
    assert (shown == 255).all()


def test_bytes_are_kept_only_if_nothing_changes():
    data, png = picture(1, 80, 60), picture(1, 80, 60, "PNG")
    keep = Pictures(size=60, only_if_bigger=True, skip_reencode=True)
    assert prepare(data, Pictures(size=100, only_if_bigger=True, skip_reencode=True)).data == data
    assert prepare(data, Pictures(size=30, skip_reencode=True)).data != data
    assert prepare(png, keep).extension == "jpg"
    assert prepare(data, keep, [[0.1, 0.1, 0.5, 0.5]]).data != data
    result = prepare(png, Pictures(original=True))
    assert (result.data, result.extension) == (png, "png")


def test_boxes_are_blurred_and_the_rest_is_not():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8))
    data = saved(noise)
    for how in (Pictures(format="png"), Pictures(format="png", skip_reencode=True), Pictures(original=True)):
        result = prepare(data, how, [[0.5, 0.5, 0.9, 0.9]])
        shown = pixels(result.data)
        if result.extension == "png":
            assert (shown[:40, :60] == pixels(data)[:40, :60]).all()
        assert shown[65:100, 85:140].std() < 0.35 * shown[:40, :60].std()
    cropped = prepare(data, Pictures(size=60, resize="center_crop", format="png"), [[0.0, 0.0, 1.0, 1.0]])
    assert pixels(cropped.data).std() < 15
    with pytest.raises(Rejected, match="four numbers"):
        prepare(data, Pictures(), ["box"])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (Pictures(min_size=121), "smaller"),
        (Pictures(max_aspect=1.2), "aspect"),
        (Pictures(max_area=19_199), "pixels"),
    ],
)
def test_filters(how, why):
    with pytest.raises(Rejected, match=why) as caught:
        prepare(picture(1, 160, 120), how)
    assert caught.value.status == "filtered"
    assert prepare(picture(1, 160, 120), Pictures(min_size=120, max_aspect=4 / 3, max_area=19_200))


def test_the_limit_of_pixels_counts_before_anything_is_decoded():
    for kind in ("JPEG", "PNG", "WEBP"):
        with pytest.raises(Rejected) as caught:
            prepare(picture(1, 160, 120, kind), Pictures(limits=Limits(pixels=19_000)))
        assert caught.value.status == "too_many_pixels"
    thin = saved(Image.new("RGB", (4000, 1)))
    with pytest.raises(Rejected, match="would become"):
        prepare(thin, Pictures(size=1000))


@settings(max_examples=60, deadline=None)
@given(
    cut=st.floats(0.1, 0.98),
    format=st.sampled_from(["JPEG", "PNG", "WEBP"]),
    size=st.sampled_from([None, 20]),
)
def test_pictures_that_are_cut_off_are_refused(cut, format, size):
    data = picture(3, 160, 120, format)
    with pytest.raises(Rejected) as caught:
        prepare(data[: int(len(data) * cut)], Pictures(size=size))
    assert caught.value.status in ("bad_image", "not_image")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Pillow, about damaged metadata
@settings(max_examples=100, deadline=None)
@given(
    data=st.binary(max_size=200),
    at=st.integers(0, 2000),
    format=st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "TIFF"]),
)
def test_damage_is_refused_or_harmless(data, at, format):
    good = picture(3, 64, 48, format)
    damaged = good[: at % len(good)] + data + good[at % len(good) + len(data) :]
    with contextlib.suppress(Rejected):
        assert prepare(damaged, Pictures(size=20)).data


@pytest.mark.parametrize(("width", "height"), [(64, 48), (200, 150), (500, 375)])
@pytest.mark.parametrize("layout", [0, 2])  # 4:4:4, 4:2:0
def test_the_largest_size_of_a_picture_is_larger_than_any(width, height, layout):
    """Noise at the highest quality needs the most bytes for a pixel."""
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8))
    worst = saved(noise, "JPEG", quality=100, subsampling=layout)
    for head in (worst, worst[:2000]):
        assert len(worst) < largest_size(head) - (4 << 20) <= 8 * width * height
    assert largest_size(worst[:20]) == float("inf")  # its size is not known yet
    assert largest_size(picture(1, 64, 48, "PNG")) == float("inf")
    assert largest_size(b"<html>" * 1000) == 0


@pytest.mark.parametrize(("width", "height", "size"), [(1600, 1200, 384), (500, 375, 256), (1000, 700, 300)])
def test_scaled_decoding_shows_the_same(width, height, size):
    """The mean squared error against a full decode is that of 38 dB, or less."""
    data = photo(width, height)
    fast, exact = (
        pixels(prepare(data, Pictures(size=size, format="png", exact=each)).data) for each in (False, True)
    )
    assert 10 * np.log10(255**2 / ((fast - exact) ** 2).mean()) >= 38


def photo(width, height):
    """A picture with the spectrum of natural ones: the amplitude falls with the frequency."""
    random = np.random.default_rng(7)
    down, across = np.meshgrid(np.fft.fftfreq(height), np.fft.fftfreq(width), indexing="ij")
    falls = 1 / np.maximum(np.hypot(down, across), 1 / max(width, height)) ** 1.2
    grey = np.fft.ifft2(falls * np.exp(2j * np.pi * random.random((height, width)))).real
    tint = [
        np.fft.ifft2(falls**1.3 * np.exp(2j * np.pi * random.random((height, width)))).real for _ in range(3)
    ]
    planes = [grey / grey.std() + 0.3 * each / each.std() for each in tint]
    image = np.clip(128 + 45 * np.stack(planes, 2), 0, 255).astype(np.uint8)
    return saved(Image.fromarray(image), "JPEG", quality=90)


@pytest.mark.parametrize(
    "wrong",
    [
        {"resize": "stretch"}, {"format": "gif"}, {"quality": 101}, {"format": "png", "quality": 95}, {"size": 0},
        {"max_aspect": 0.5}, {"original": True, "size": 5}, {"resize": "border"},
    ],
)  # fmt: skip
def test_invalid_options(wrong):
    with pytest.raises(UsageError):
        Pictures(**wrong)
