"""Every image spec gives the values of webdataset; other formats and bombs raise."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
import webdataset.autodecode as theirs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from tarmac.codecs import Decoder, encode_field, find_encoder, imagehandler, images, imagespecs
from tarmac.codecs.images import IMAGE_EXTENSIONS, ImageHandler
from tarmac.errors import DecodeFailed, DecompressionBomb, TarmacWarning
from tarmac.limits import Limits

RNG = np.random.default_rng(7)
SMALL = RNG.integers(0, 256, (9, 13, 3), dtype="u1")
PHOTO = np.asarray(Image.fromarray(SMALL).resize((131, 97), Image.Resampling.BICUBIC))


def sample_image(mode):
    if mode in ("I;16", "I;16B"):
        return Image.fromarray(RNG.integers(0, 200, (97, 131)).astype("<u2"))
    if mode == "RGBA":
        return Image.fromarray(np.dstack([PHOTO, PHOTO[..., 0]]))
    if mode == "LA":
        return Image.fromarray(PHOTO[..., :2].copy(), "LA")
    return Image.fromarray(PHOTO).convert(mode)


def save(mode, format, **options):
    stream = io.BytesIO()
    sample_image(mode).save(stream, format, **options)
    return stream.getvalue()


def transparent_palette():
    stream = io.BytesIO()
    sample_image("P").save(stream, "PNG", transparency=3)
    return stream.getvalue()


def with_trailing_bytes():
    return save("RGB", "JPEG") + b"trailing bytes"


def with_damage():
    data = bytearray(save("RGB", "JPEG", quality=95))
    data[1500:1503] = b"\xff\xd0\x00"
    return bytes(data)


IMAGES = {
    "jpg": [
        lambda: save("RGB", "JPEG"),
        lambda: save("RGB", "JPEG", quality=100),
        lambda: save("RGB", "JPEG", quality=40, subsampling="4:2:0"),
        lambda: save("RGB", "JPEG", subsampling="4:4:4"),
        lambda: save("RGB", "JPEG", subsampling="4:2:2"),
        lambda: save("RGB", "JPEG", progressive=True),
        lambda: save("RGB", "JPEG", keep_rgb=True),
        lambda: save("L", "JPEG"),
        lambda: save("CMYK", "JPEG"),
        with_trailing_bytes,
        with_damage,
    ],
    "png": [
        *(lambda mode=mode: save(mode, "PNG") for mode in ("RGB", "RGBA", "L", "LA", "P", "1")),
        transparent_palette,
        lambda: save("RGB", "JPEG"),  # the content decides, not the name
    ],
    "webp": [
        lambda: save("RGB", "WEBP"),
        lambda: save("RGBA", "WEBP"),
        lambda: save("RGB", "WEBP", lossless=True),
    ],
    "gif": [lambda: save("P", "GIF"), lambda: save("L", "GIF")],
    "bmp": [lambda: save("RGB", "BMP"), lambda: save("L", "BMP")],
    "tif": [
        lambda: save("RGB", "TIFF"),
        lambda: save("L", "TIFF"),
        lambda: save("RGB", "TIFF", compression="tiff_lzw"),
    ],
    "ppm": [lambda: save("RGB", "PPM"), lambda: save("L", "PPM"), lambda: save("1", "PPM")],
    "tga": [lambda: save("RGB", "TGA"), lambda: save("RGBA", "TGA")],
    "jp2": [lambda: save("RGB", "JPEG2000")],
    "ico": [lambda: save("RGBA", "ICO")],
    "sgi": [lambda: save("RGB", "SGI")],
    "pcx": [lambda: save("RGB", "PCX")],
    "dds": [lambda: save("RGB", "DDS")],
}
CASES = [(extension, number) for extension, builders in IMAGES.items() for number in range(len(builders))]


def test_the_specs_equal_those_of_webdataset():
    assert imagespecs == theirs.imagespecs
    assert set(IMAGE_EXTENSIONS) < set(theirs.IMAGE_EXTENSIONS)
    not_images = "blp bufr grib h5 hdf fit fits ps eps mpg mpeg wmf emf iim"
    assert set(theirs.IMAGE_EXTENSIONS) - set(IMAGE_EXTENSIONS) == set(not_images.split())


@pytest.mark.parametrize(("extension", "number"), CASES)
def test_values_equal_those_of_webdataset(extension, number):
    data = IMAGES[extension][number]()
    for spec in imagespecs:
        ours = imagehandler(spec)(f".{extension}", data)
        other = theirs.imagehandler(spec)(f".{extension}", data)
        assert type(ours) is type(other), spec
        if isinstance(other, Image.Image):
            assert ours.mode == other.mode, spec
            ours, other = np.asarray(ours), np.asarray(other)
        elif isinstance(other, torch.Tensor):
            assert ours.is_contiguous(), spec
            ours, other = ours.numpy(), other.numpy()
        else:
            assert ours.flags.writeable, spec
        assert ours.dtype == other.dtype, spec
        np.testing.assert_array_equal(ours, other, err_msg=spec, strict=True)


@settings(max_examples=60)
@given(
    hnp.arrays("u1", st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3))),
    st.integers(1, 100),
    st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]),
    st.booleans(),
    st.sampled_from(["rgb8", "l8", "rgba8", "torchrgb"]),
)
def test_jpegs_equal_those_of_pillow_exactly(array, quality, subsampling, progressive, spec):
    stream = io.BytesIO()
    Image.fromarray(array).save(
        stream, "JPEG", quality=quality, subsampling=subsampling, progressive=progressive
    )
    ours = np.asarray(imagehandler(spec)(".jpg", stream.getvalue()))
    np.testing.assert_array_equal(ours, np.asarray(theirs.imagehandler(spec)(".jpg", stream.getvalue())))


def test_fast_jpegs_are_nearly_the_same(tmp_path):
    data = save("RGB", "JPEG")
    for spec in ("rgb8", "rgb", "rgba8", "torchrgb8"):
        exact, fast = (np.asarray(imagehandler(spec, fast=fast)(".jpg", data)) for fast in (False, True))
        assert exact.shape == fast.shape
        assert exact.dtype == fast.dtype
        assert (exact != fast).any()
        scale = 1 if exact.dtype == np.float32 else 255
        assert abs(exact.astype(float) - fast.astype(float)).mean() < 0.02 * scale
    png = save("RGB", "PNG")
    np.testing.assert_array_equal(
        imagehandler("rgb8", fast=True)(".png", png), imagehandler("rgb8")(".png", png)
    )
    assert repr(imagehandler("rgb8", fast=True)) == "ImageHandler('rgb8', fast=True)"
    with pytest.raises(ValueError, match="fast"):
        imagehandler("pil", fast=True)


@pytest.mark.parametrize("field", ["png", "ppm", "bmp", "tiff", "webp"])
@given(hnp.arrays("u1", st.tuples(st.integers(1, 20), st.integers(1, 20), st.just(3))))
def test_lossless_round_trip(field, array):
    data = encode_field(field, array, find_encoder(field), "k")
    np.testing.assert_array_equal(Decoder([imagehandler("rgb8")])({field: data})[field], array)


def test_through_a_decoder_by_extension_and_case():
    decode = Decoder([ImageHandler("rgb8")])
    data = save("RGB", "PNG")
    decoded = decode({"__key__": "k", "PNG": data, "a.b.Png": data, "json": b"1", "h5": b"x", "mpg": b"y"})
    assert decoded["PNG"].shape == decoded["a.b.Png"].shape == (97, 131, 3)
    assert (decoded["json"], decoded["h5"], decoded["mpg"]) == (1, b"x", b"y")
    assert Decoder([ImageHandler("rgb8", ["img"])])({"img": data, "png": data})["png"] == data
    assert Decoder([ImageHandler("rgb8", "IMG")])({"img": data})["img"].shape == (97, 131, 3)
    assert Decoder([ImageHandler("RGB8")])({"png": data})["png"].dtype == np.uint8


def test_unknown_specs_and_pickling():
    with pytest.raises(ValueError, match=r"'rgb16'.* l8, rgb8, .*pilrgba"):
        imagehandler("rgb16")
    copy = pickle.loads(pickle.dumps(imagehandler("torchrgb")))
    assert copy(".png", save("RGB", "PNG")).shape == (3, 97, 131)
    assert repr(copy) == "ImageHandler('torchrgb')"


def test_16_bit_images_are_kept_or_warn():
    deep = (np.arange(97 * 131, dtype="u2") * 5).reshape(97, 131)
    stream = io.BytesIO()
    Image.fromarray(deep).save(stream, "PNG")
    data = stream.getvalue()
    for spec in ("pil", "pill"):
        image = imagehandler(spec)(".png", data)
        np.testing.assert_array_equal(np.asarray(image), deep)
    for spec in ("rgb8", "l", "torchl", "pilrgb", "pilrgba"):
        with pytest.warns(TarmacWarning, match=spec):
            ours = imagehandler(spec)(".png", data)
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs.imagehandler(spec)(".png", data)))
    stream = io.BytesIO()
    Image.fromarray(np.minimum(deep, 200)).save(stream, "PNG")
    assert (
        imagehandler("l8")(".png", stream.getvalue()).max() == 200
    )  # nothing is lost, so there is no warning


@pytest.mark.parametrize("values", [[[0.25, 0.75]], [[-3, 7]], [[0, 70_000]]])
def test_fractions_and_negative_values_warn(values):
    array = np.array(values, "f4" if isinstance(values[0][0], float) else "i4")
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "TIFF")
    np.testing.assert_array_equal(np.asarray(imagehandler("pil")(".tif", stream.getvalue())), array)
    with pytest.warns(TarmacWarning, match=f"{array.min():g} to {array.max():g}"):
        imagehandler("l8")(".tif", stream.getvalue())


UNSUPPORTED = {
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n",
    "wmf": b"\xd7\xcd\xc6\x9a" + bytes(40),
    "fits": b"SIMPLE  =                    T".ljust(80) + b"BITPIX  =                    8".ljust(80),
    "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(100),
    "grib": b"GRIB" + bytes(3) + b"\x01" + bytes(50),
    "bufr": b"BUFR" + bytes(50),
    "blp": b"BLP2" + bytes(200),
    "mpeg": b"\x00\x00\x01\xb3" + bytes(50),
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "empty": b"",
    "zeros": bytes(1000),
    "text": b"hello",
    "jpeg start": b"\xff\xd8\xff",
    "jpeg header": b"\xff\xd8\xff\xe0" + bytes(100),
    "png start": b"\x89PNG\r\n\x1a\n",
    "riff": b"RIFF\x00\x00\x00\x00WEBP",
    "gif": b"GIF89a",
    "bmp": b"BM" + bytes(60),
    "tiff": b"II*\x00" + b"\xff" * 60,
}


@pytest.mark.parametrize("name", UNSUPPORTED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unsupported_formats(name):
    for spec in ("rgb8", "pil", "torchl"):
        for field in ("jpg", "png", "tif"):
            with pytest.raises(DecodeFailed) as caught:
                Decoder([imagehandler(spec)])({"__key__": "k", "__url__": "u", field: UNSUPPORTED[name]})
            assert (caught.value.key, caught.value.url, caught.value.field) == ("k", "u", field)


def test_truncated_images_are_errors():
    for extension, builders in IMAGES.items():
        data = builders[0]()
        with pytest.raises(DecodeFailed):
            Decoder([imagehandler("rgb8")])({extension: data[: len(data) // 3]})


def test_the_pixel_limit_is_exact():
    data = {
        field: save("RGB", name)
        for field, name in (("jpg", "JPEG"), ("png", "PNG"), ("bmp", "BMP"), ("webp", "WEBP"))
    }
    for field, content in data.items():
        for spec in ("rgb8", "pil"):
            assert Decoder([imagehandler(spec)], limits=Limits(pixels=131 * 97))({field: content})
            with pytest.raises(DecompressionBomb, match=r"131x97 .*12706.*Limits\.pixels"):
                Decoder([imagehandler(spec)], limits=Limits(pixels=131 * 97 - 1))({field: content})


def test_formats_missing_from_pillow_are_skipped(monkeypatch):
    Image.init()
    monkeypatch.delitem(Image.OPEN, "QOI")
    images._supported.cache_clear()
    try:
        with pytest.raises(DecodeFailed, match='field "jpg"'):
            Decoder([imagehandler("pil")])({"jpg": b"qoif" + bytes(50)})
    finally:
        images._supported.cache_clear()
