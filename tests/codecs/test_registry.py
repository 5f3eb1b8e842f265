"""The registry: one registration reaches decoding, writing, indexes and the shard tools."""

from __future__ import annotations

import io
import multiprocessing
import struct
import sys

import numpy as np
import pytest
import webdataset.autodecode
import webdataset.writer
from PIL import Image

import tarmac
from tarmac.codecs import Codec, Decoder, find_codec, kind_of, registry
from tarmac.codecs.images import open_image_field
from tarmac.errors import NoCodec, UsageError
from tarmac.indexing.attributes import attributes_of, read_field
from tarmac.tools.columns import Columns
from tarmac.tools.export.values import Kinds
from tarmac.tools.show.describe import describe
from tarmac.tools.show.sheet import contact_sheet
from tarmac.tools.show.verb import SampleView


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))


def load_half(data):
    return np.frombuffer(data, "<f2")


def dump_half(value):
    return np.asarray(value, "<f2").tobytes()


HALF = Codec(
    "fp16 half",
    decode=load_half,
    encode=dump_half,
    kind="array",
    attributes=("length",),
    read_attributes=lambda data, limits: {"length": len(data) // 2},
)


def test_every_extension_of_webdataset_is_registered():
    codecs = dict(registry.registered_codecs())
    assert set(webdataset.autodecode.decoders) <= {name for name, codec in codecs.items() if codec.decode}
    theirs = {name for name in webdataset.writer.default_handlers if "." not in name}
    assert theirs <= {name for name, codec in codecs.items() if codec.encode}


def test_a_registered_codec_reads_writes_and_indexes(tmp_path):
    tarmac.register_codec(HALF)
    path = str(tmp_path / "a.tar")
    with tarmac.TarWriter(path) as writer:
        writer.write({"__key__": "a", "left.fp16": [1, 2.5, -3], "HALF": np.zeros(2)})
    (raw,) = tarmac.read(path)
    assert raw["left.fp16"] == struct.pack("<3e", 1, 2.5, -3)
    (sample,) = tarmac.WebDataset(path, shardshuffle=False).decode()
    assert sample["left.fp16"].tolist() == [1, 2.5, -3]
    assert tarmac.Dataset(path).decode()[0]["half"].tolist() == [0, 0]


def test_attributes_reach_the_index():
    tarmac.register_codec(HALF)
    assert attributes_of("x.half") == ("length",)
    assert read_field("x.half", bytes(6))("length") == 3


def test_tools_use_the_kind_of_a_registered_codec():
    tarmac.register_codec(HALF)
    tarmac.register_codec(Codec("note", decode=bytes.decode, encode=str.encode, kind="text"))
    tarmac.register_codec(Codec("grey", decode=lambda data: np.full((3, 4), data[0], "u1"), kind="image"))
    assert "float16" in describe("fp16", dump_half([1, 2]))
    assert Kinds().of("note") == "text"
    assert Kinds().of("fp16") == "bytes"
    layout = Columns().layout(["fp16"], "t.jsonl")
    assert layout.values({"fp16": [1, 2]}, "k") == {"fp16": dump_half([1, 2])}
    assert "4x3" in describe("grey", b"\x07")
    assert contact_sheet([SampleView("a", "a.tar", {"grey": b"\x07"})])[1] == 1


def test_an_extension_is_registered_once_unless_replaced():
    tarmac.register_codec(HALF)
    tarmac.register_codec(HALF)
    with pytest.raises(UsageError, match="half"):
        tarmac.register_codec(Codec("half"))
    with pytest.raises(UsageError, match="npy"):
        tarmac.register_codec(Codec("other NPY"))
    assert find_codec("other") is None
    tarmac.register_codec(Codec("npy", decode=len), replace=True)
    assert Decoder([])({"npy": b"abc"}) == {"npy": 3}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"extensions": ""}, "extensions"),
        ({"extensions": ".npy"}, "extensions"),
        ({"extensions": "seg.png"}, "extensions"),
        ({"extensions": "x", "kind": "picture"}, "kind"),
        ({"extensions": "x", "attributes": ("a",)}, "attributes"),
        ({"extensions": "x", "read_attributes": len}, "attributes"),
    ],
)
def test_invalid_codecs(arguments, field):
    with pytest.raises(UsageError) as caught:
        Codec(**arguments)
    assert caught.value.field == field


def test_a_codec_without_an_encoder_takes_only_bytes(tmp_path):
    tarmac.register_codec(Codec("raw", decode=len))
    with tarmac.TarWriter(tmp_path / "a.tar") as writer:
        writer.write({"__key__": "a", "raw": b"abc"})
        with pytest.raises(NoCodec, match="raw"):
            writer.write({"__key__": "b", "raw": [1]})


def test_kinds():
    kinds = {
        name: kind_of(name) for name in ("a.cls", "TXT", "md", "json", "npy", "jpg", "mp4", "wav", "what")
    }
    assert list(kinds.values()) == [
        "int",
        "text",
        "text",
        "json",
        "array",
        "image",
        "video",
        "audio",
        "bytes",
    ]


def test_spawned_processes_register_when_they_import_the_module(tmp_path, monkeypatch):
    (tmp_path / "my_codecs.py").write_text(
        "import tarmac\n"
        "from tarmac.codecs import Decoder\n"
        "tarmac.register_codec(tarmac.codecs.Codec('backwards', decode=lambda data: data[::-1]))\n"
        "def decode(data):\n"
        "    return Decoder([])({'backwards': data})['backwards']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import my_codecs

    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(my_codecs.decode, (b"abc",)) == b"cba"
    finally:
        del sys.modules["my_codecs"]


def test_image_fields_open_through_pillow():
    stream = io.BytesIO()
    Image.new("RGB", (4, 3)).save(stream, "TGA")
    assert open_image_field("x.tga", stream.getvalue()).size == (4, 3)
