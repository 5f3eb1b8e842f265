"""Values are encoded by extension; invalid ones raise typed errors."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sys

import cbor2
import msgpack
import numpy as np
import pytest
import torch
import webdataset.writer
from PIL import Image

from tarmac.codecs import encode_field, find_encoder
from tarmac.codecs.registry import registered_codecs
from tarmac.errors import CodecError, EncodeFailed, NoCodec


def encode(field, value):
    return encode_field(field, value, find_encoder(field), "some/key")


@pytest.mark.parametrize("field", ["cls", "cls2", "class", "count", "index", "inx", "id", "a.cls", "CLS"])
def test_integers(field):
    assert encode(field, 42) == b"42"
    assert encode(field, np.int32(-7)) == b"-7"
    assert encode(field, torch.tensor(3)) == b"3"
    for bad in (1.5, None, True, [1]):
        with pytest.raises(EncodeFailed, match=rf'field "{field}"'):
            encode(field, bad)


def test_text_and_bytes_are_stored_as_they_are():
    for field in ("txt", "json", "unknown", "cls", "txt.gz"):
        text = encode(field, "ü")
        assert (gzip.decompress(text) if field.endswith(".gz") else text) == "ü".encode()
    for field in ("txt", "json", "jpg", "unknown", "cls"):
        assert encode(field, b"raw") == b"raw"
        assert encode(field, bytearray(b"raw")) == b"raw"
    with pytest.raises(EncodeFailed, match="int"):
        encode("txt", 5)


@pytest.mark.parametrize("field", ["jpg", "seg.PNG", "npy", "mp4", "wav", "pth", "jpg.gz"])
def test_text_is_refused_where_bytes_belong(field):
    with pytest.raises(EncodeFailed, match=rf'field "{field}".*photos/cat\.jpg.*read_bytes'):
        encode(field, "photos/cat.jpg")


def test_json():
    assert json.loads(encode("json", {"ä": [1, None]})) == {"ä": [1, None]}
    with pytest.raises(EncodeFailed, match=r'sample "some/key": field "json"'):
        encode("json", {"x": object()})
    with pytest.raises(EncodeFailed):
        encode("json", float("nan"))


def test_arrays():
    array = np.arange(6, dtype="f4").reshape(2, 3)
    assert (np.load(io.BytesIO(encode("npy", array))) == array).all()
    assert (np.load(io.BytesIO(encode("npy", torch.from_numpy(array)))) == array).all()
    back = np.load(io.BytesIO(encode("npz", {"a": array, "b": array[0]})))
    assert (back["a"] == array).all()
    assert (back["b"] == array[0]).all()
    for field, bad in (("npy", np.array([object()])), ("npz", [array]), ("npz", {1: array})):
        with pytest.raises(EncodeFailed):
            encode(field, bad)


def test_tenbin_layout_and_invalid_arrays():
    data = encode("ten", np.array([1, 2], "u4"))
    assert data[:16] == b"~TenBin~" + (32).to_bytes(8, "little")
    assert data[16:18] == b"u4"
    assert data[16 + 64 : 16 + 64 + 16] == b"~TenBin~" + (8).to_bytes(8, "little")
    with pytest.raises(EncodeFailed, match="bool"):
        encode("ten", np.array([True]))
    with pytest.raises(EncodeFailed, match="dimensions"):
        encode("ten", np.zeros((1,) * 10))


def test_serialisers():
    value = {"a": [1, "x", None]}
    assert msgpack.unpackb(encode("mp", value)) == value
    assert msgpack.unpackb(encode("msgpack", value)) == value
    assert cbor2.loads(encode("cbor", value)) == value
    for field in ("pyd", "pkl", "pickle"):
        assert pickle.loads(encode(field, value)) == value
    assert torch.load(io.BytesIO(encode("pth", torch.ones(3))), weights_only=True).tolist() == [1, 1, 1]


def test_image_modes():
    grey = np.arange(42, dtype="uint8").reshape(6, 7)
    for value in (grey, grey[:, :, None], torch.from_numpy(grey), Image.fromarray(grey)):
        assert (np.asarray(Image.open(io.BytesIO(encode("png", value)))) == grey).all()
    assert (np.asarray(Image.open(io.BytesIO(encode("pgm", grey)))) == grey).all()
    assert Image.open(io.BytesIO(encode("pbm", grey))).mode == "1"
    rgba = np.zeros((4, 4, 4), "uint8")
    assert Image.open(io.BytesIO(encode("png", rgba))).mode == "RGBA"
    deep = (np.arange(42, dtype="uint16") * 1000).reshape(6, 7)
    assert (np.asarray(Image.open(io.BytesIO(encode("png", deep)))) == deep).all()
    floats = np.linspace(0, 1, 42, dtype="f4").reshape(6, 7)
    assert np.asarray(Image.open(io.BytesIO(encode("png", floats)))).max() == 255


@pytest.mark.parametrize("field", ["jpg", "jpeg", "img", "image", "png", "ppm"])
def test_image_formats_equal_those_of_webdataset(field):
    array = np.arange(4 * 5 * 3, dtype="uint8").reshape(4, 5, 3)
    ours = Image.open(io.BytesIO(encode(field, array)))
    theirs = Image.open(io.BytesIO(webdataset.writer.default_handlers[field](array)))
    assert ours.format == theirs.format
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_jpeg():
    rng = np.random.default_rng(1)
    smooth = np.kron(rng.integers(0, 256, (4, 4, 3)), np.ones((8, 8, 1))).astype("uint8")
    back = np.asarray(Image.open(io.BytesIO(encode("jpg", smooth))))
    assert np.abs(back.astype(int) - smooth).mean() < 12
    with pytest.raises(EncodeFailed, match="RGBA"):
        encode("jpg", np.zeros((4, 4, 4), "uint8"))


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros(5, "uint8"),
        np.zeros((2, 2, 2), "uint8"),
        np.full((2, 2), 2.0),
        np.array([[0.5, np.nan]]),
        np.array([[0.5, -np.inf]]),
        np.zeros((2, 2), "int64"),
        5,
    ],
)
def test_invalid_images(bad):
    with pytest.raises(EncodeFailed):
        encode("png", bad)


def test_unknown_fields():
    with pytest.raises(NoCodec, match="weird"):
        encode("weird", [1])


def test_every_encoder_raises_typed_errors():
    class Unencodable:
        def __reduce__(self):
            raise TypeError("no")

    for field, codec in registered_codecs():
        if codec.encode is None:
            continue
        with pytest.raises(CodecError) as caught:
            encode(field, Unencodable())
        assert caught.value.key == "some/key"
        assert caught.value.field == field


def test_custom_encoders():
    assert encode_field("x", 1, lambda value: bytearray(b"1"), "k") == b"1"
    with pytest.raises(EncodeFailed, match=r'sample "k": field "x": .*int'):
        encode_field("x", 1, lambda value: value, "k")
    with pytest.raises(EncodeFailed, match="ZeroDivisionError") as caught:
        encode_field("x", 0, lambda value: 1 / value, "k")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("field", "module", "extra"),
    [("mp", "msgpack", "msgpack"), ("cbor", "cbor2", "cbor"), ("pth", "torch", "torch")],
)
def test_missing_libraries_name_their_extra(monkeypatch, field, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"tarmac-data\[{extra}\]"):
        encode(field, {"a": 1})
