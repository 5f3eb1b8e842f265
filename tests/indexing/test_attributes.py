"""What the bytes of a field say: images and arrays by their headers, JSON by paths."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from harness import rounds
from tarmac.errors import DecodeFailed, DecompressionBomb
from tarmac.indexing.attributes import attributes_of, is_json, read_field
from tarmac.limits import Limits


def image(form, mode="RGB", size=(30, 20)):
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, form)
    return stream.getvalue()


def npy(array, version=None):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("field", "data", "channels"),
    [
        ("jpg", image("JPEG"), 3),
        ("seg.JPEG", image("JPEG", "L"), 1),
        ("jpg", image("JPEG", "CMYK"), 4),
        ("png", image("PNG", "RGBA"), 4),
        ("png", image("JPEG"), 3),
        ("webp", image("WEBP"), 3),
        ("gif", image("GIF", "P"), 1),
        ("bmp", image("BMP"), 3),
        ("tif", image("TIFF", "L"), 1),
        ("ppm", image("PPM"), 3),
        ("tga", image("TGA"), 3),
    ],
)
def test_the_size_of_an_image_is_in_its_header(field, data, channels):
    results = read_field(field, data)
    assert [results(name) for name in attributes_of(field)] == [30, 20, channels]


@pytest.mark.parametrize("field", ["jpg", "png"])
def test_pixels_are_not_decoded(field, monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("decoded")

    data = image("JPEG" if field == "jpg" else "PNG", size=(300, 200))
    monkeypatch.setattr(simplejpeg, "decode_jpeg", refuse)
    monkeypatch.setattr(Image.Image, "load", refuse)
    assert read_field(field, data)("width") == 300


@pytest.mark.parametrize(("field", "form"), [("jpg", "JPEG"), ("png", "PNG"), ("gif", "GIF")])
def test_images_beyond_the_limit_are_refused(field, form):
    data = image(form)
    assert read_field(field, data, Limits(pixels=600))("width") == 30
    with pytest.raises(DecompressionBomb, match="30x20"):
        read_field(field, data, Limits(pixels=599))


def test_a_jpeg_truncated_in_its_header_is_not_an_image():
    with pytest.raises((DecodeFailed, OSError)):
        read_field("jpg", image("JPEG")[:30])
    with pytest.raises(DecodeFailed, match="14 bytes"):
        read_field("png", b"GET / HTTP/1.1")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    ("array", "shape", "kind"),
    [
        (np.zeros((3, 224, 224), np.float32), "3x224x224", "float32"),
        (np.zeros(7, np.uint8), "7", "uint8"),
        (np.float64(1), "", "float64"),
        (np.zeros(2, "U3"), "2", "<U3"),
    ],
)
def test_arrays_by_their_header(array, shape, kind, version):
    data = npy(np.asarray(array), version)
    start = len(data) - np.asarray(array).nbytes
    results = read_field("x.npy", data[:start])
    assert (results("shape"), results("dtype")) == (shape, kind)


def test_text_and_numbers_are_their_own_value():
    assert read_field("txt", "héllo\n".encode())("") == "héllo\n"
    assert read_field("cls", b" 12\n")("") == 12
    for bad in (("txt", b"\xff"), ("cls", b"cat"), ("npy", b"\x93NUM"), ("npy", b"")):
        with pytest.raises(ValueError):
            read_field(*bad)


def test_which_attributes_there_are():
    assert attributes_of("seg.png") == ("width", "height", "channels")
    assert attributes_of("txt") == attributes_of("cls") == ("",)
    assert attributes_of("mp4") == ()
    assert is_json("meta.JSON")
    assert not is_json("json.txt")


DEEP = {
    "caption": "a cat",
    "score": 0.5,
    "nsfw": False,
    "a": {"b": [10, {"c": None}], "b.c": 7, "": 8},
    "a.x": {"y": 9},
    "list": [1, 2],
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("caption", "a cat"),
        ("score", 0.5),
        ("nsfw", False),
        ("a.b.0", 10),
        ("a.b.2", None),
        ("a.b.-1", None),
        ("a.b.1.c", None),
        ("a.b.c", 7),
        ("a.x.y", 9),
        ("a.b.x", None),
        ("caption.0", None),
        ("missing", None),
        ("list", "[1, 2]"),
        ("a.b.1", '{"c": null}'),
    ],
)
def test_paths_into_json(path, value):
    assert read_field("json", json.dumps(DEEP).encode())(path) == value


@pytest.mark.parametrize("value", [{"b": 1, "a": "é"}, "text", 5, None, [1]])
def test_json_as_a_whole_is_json_text(value):
    text = read_field("json", json.dumps(value).encode())("")
    assert json.loads(text) == value
    assert "\\u" not in text


def leaves(value, path=()):
    if isinstance(value, int):
        yield ".".join(path), value
    else:
        for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inside, (*path, str(key)))


below = st.recursive(
    st.integers(), lambda inner: st.dictionaries(st.text("ab0"), inner) | st.lists(inner), max_leaves=8
)


@settings(derandomize=True, deadline=None, max_examples=rounds(40))
@given(st.dictionaries(st.text("ab", min_size=1), below))
def test_every_place_is_found_by_its_path(value):
    results = read_field("json", json.dumps(value).encode())
    assert [(path, results(path)) for path, _ in leaves(value)] == list(leaves(value))
