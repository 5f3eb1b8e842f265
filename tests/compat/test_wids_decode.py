"""Decode samples of open files by their extensions."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from tarmac.compat.wids.wids_decode import (
    check_keys,
    decode_all_gz,
    decode_basic,
    decode_images_to_numpy,
    decode_images_to_pil,
    default_decoder,
    interpret_transformations,
)
from tarmac.errors import DecodeFailed, UnsafeCodec


def saved(save, *args, **kw):
    stream = io.BytesIO()
    save(stream, *args, **kw)
    return stream.getvalue()


GREY = np.arange(12, dtype=np.uint8).reshape(3, 4)
PNG = saved(Image.fromarray(GREY).save, format="PNG")
FIELDS = {
    ".txt": "é".encode(),
    ".cls": b"7",
    ".json": b'{"a": 1}',
    ".info.json.gz": gzip.compress(b"[1]"),
    ".npy": saved(np.save, np.arange(3)),
    ".pth": saved(lambda stream: torch.save(torch.arange(3), stream)),
    ".mp": b"\x01",
    ".png": PNG,
    ".PNG": PNG,
    ".jpeg": b"unchanged",
    ".gz": b"unchanged",
    ".bin": b"unchanged",
}


def sample(**more):
    fields = {key: io.BytesIO(data) for key, data in (FIELDS | more).items()}
    return fields | {"__key__": "k", "__index__": 3}


def test_fields_are_decoded_by_extension():
    result = default_decoder(given := sample(), format="PIL")
    assert result[".txt"] == "é"
    assert result[".cls"] == 7
    assert result[".json"] == {"a": 1}
    assert result[".info.json.gz"] == [1]
    assert result[".npy"].tolist() == result[".pth"].tolist() == [0, 1, 2]
    assert result[".mp"] == 1
    for key in (".png", ".PNG"):
        assert isinstance(result[key], Image.Image)
        assert result[key].mode == "L"  # as it is stored
    for key in (".jpeg", ".gz", ".bin"):
        assert result[key].read() == b"unchanged"
    assert (result["__key__"], result["__index__"]) == ("k", 3)
    assert isinstance(given[".cls"], io.BytesIO)


def test_images_as_arrays():
    assert default_decoder(sample(), format="numpy")[".png"].tolist() == GREY.tolist()
    assert decode_images_to_numpy({".png": PNG})[".png"].tolist() == GREY.tolist()
    assert decode_images_to_pil({".png": PNG, "__x.png": PNG})["__x.png"] == PNG
    with pytest.raises(ValueError, match="'torch'"):
        default_decoder(sample(), format="torch")


def test_gzip_with_update_key():
    result = decode_all_gz(sample())
    assert result[".info.json"].read() == b"[1]"
    assert ".info.json.gz" not in result
    assert default_decoder(sample(), gz_update_key=True)[".info.json"] == [1]


def test_pickles_need_allow_pickle():
    data = {".pkl": io.BytesIO(pickle.dumps([1])), "__key__": "k"}
    with pytest.raises(UnsafeCodec, match='"k"'):
        default_decoder(data)
    assert decode_basic({".pickle": pickle.dumps([1])}, allow_pickle=True) == {".pickle": [1]}


def test_safetensors_are_loaded_from_bytes(monkeypatch):
    """wids called the function for file names."""
    safetensors = ModuleType("safetensors.torch")
    safetensors.load = lambda data: {"x": data}
    monkeypatch.setitem(sys.modules, "safetensors", ModuleType("safetensors"))
    monkeypatch.setitem(sys.modules, "safetensors.torch", safetensors)
    assert decode_basic({".safetensors": io.BytesIO(b"1")}) == {".safetensors": {"x": b"1"}}


@pytest.mark.parametrize(
    ("key", "data"), [(".cls", b"x"), (".json", b"{"), (".png", b"x"), (".txt", b"\xff")]
)
def test_errors_name_the_sample(key, data):
    with pytest.raises(DecodeFailed, match='sample "k"'):
        default_decoder({key: io.BytesIO(data), "__key__": "k"})


def test_keys_have_dots():
    with pytest.raises(ValueError, match="'jpg'"):
        check_keys({"jpg": 1})
    with pytest.raises(ValueError, match="'jpg'"):
        default_decoder({"jpg": b"1"})


def test_transformations():
    assert interpret_transformations(None) == interpret_transformations([]) == []
    assert interpret_transformations(json.loads) == interpret_transformations([json.loads]) == [json.loads]
    (numpy,) = interpret_transformations("numpy")
    assert numpy({".png": PNG})[".png"].shape == (3, 4)
    assert pickle.loads(pickle.dumps(numpy))({".cls": b"1"}) == {".cls": 1}
    with pytest.raises(ValueError, match="'torch'"):
        interpret_transformations("torch")
