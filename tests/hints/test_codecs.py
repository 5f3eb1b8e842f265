"""Follow the hints of codecs."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

import tarmac
import tarmac.webdataset as wds
from harness.commands import run
from harness.hints import follows, hinted
from harness.shards import plain
from tarmac.codecs import Codec, registry, unsafe
from tarmac.errors import DecodeFailed, DecompressionBomb, EncodeFailed, NoCodec, UnsafeCodec, UsageError

PIL = pytest.importorskip("PIL.Image")


def decoded(field, data, *args, **options):
    """Return a field of a sample as a pipeline decodes it."""
    samples = wds.FluidWrapper([{"__key__": "a", field: data}]).decode(*args, **options)
    return next(iter(samples))[field]


def written(path, **fields):
    with tarmac.TarWriter(path) as writer:
        writer.write({"__key__": "a", **fields})
    (sample,) = tarmac.WebDataset(str(path)).decode("pil")
    return sample


@follows("a json, npy or npz field; for data you trust, allow_pickle=True or {}.")
def test_a_pickle(tmp_path):
    data = pickle.dumps({"x": [1, 2]})
    with hinted(
        "a json, npy or npz field; for data you trust, allow_pickle=True or {}.", UnsafeCodec
    ) as caught:
        decoded("pkl", data)
    assert caught.value.hint.endswith("or tarmac.codecs.unsafe.pickle_handler.")
    assert (
        decoded("pkl", data, allow_pickle=True)
        == decoded("pkl", data, unsafe.pickle_handler)
        == {"x": [1, 2]}
    )
    check_safe_formats(tmp_path)


def check_safe_formats(tmp_path):
    sample = written(tmp_path / "x.tar", json={"x": [1, 2]}, npy=np.ones(2), npz={"x": np.ones(2)})
    assert sample["json"] == {"x": [1, 2]}
    assert sample["npy"].tolist() == sample["npz"]["x"].tolist() == [1, 1]


@follows("a json, npy or npz field.")
def test_a_pickle_in_secure_mode(tmp_path, monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "1")
    for decoder in ({"allow_pickle": True}, {}):
        with hinted("a json, npy or npz field.", UnsafeCodec):
            decoded("pkl", pickle.dumps(1), *(() if decoder else (unsafe.pickle_handler,)), **decoder)
    check_safe_formats(tmp_path)


EXPANDS = "raise Limits.expansion or Limits.member_bytes if you trust the data."


def zipped():
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.zeros(100_000, "u1"))
    return stream.getvalue()


@follows("raise Limits.expansion or Limits.member_bytes if you trust the data.")
@pytest.mark.parametrize("field", ["txt.gz", "npz"])
def test_a_field_that_expands(field):
    data = zipped() if field == "npz" else gzip.compress(b"x" * 100_000)
    for low, high in (
        ({"expansion": 2}, {"expansion": 1000}),
        ({"member_bytes": 50_000}, {"member_bytes": 200_000}),
    ):
        with hinted(EXPANDS, DecompressionBomb):
            decoded(field, data, limits=tarmac.Limits(expansion_floor=1, **{"expansion": 1000, **low}))
        assert len(
            decoded(field, data, limits=tarmac.Limits(expansion_floor=1, **{"expansion": 1000, **high}))
        )


@follows("raise Limits.expansion or Limits.member_bytes if you trust the data.")
def test_a_field_that_expands_on_the_command_line(tmp_path, capsys):
    shard = tmp_path / "x.tar"
    shard.write_bytes(plain([("a.txt.gz", gzip.compress(b"x" * 100_000))]))
    command = ["check", str(shard), "--decode", "-j", "1", "--limits"]
    assert run([*command, "member_bytes=50000"]) == 1
    assert "raise --limits expansion=N or --limits member_bytes=N if you" in capsys.readouterr().out
    assert run([*command, "member_bytes=200000"]) == 0


def png(width, height):
    """A PNG file that claims a size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = b"IDAT" + zlib.compress(bytes((width + 1) * height))
    chunks = [
        struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each))
        for each in (header, data)
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + b"\0\0\0\0IEND\xaeB`\x82"


@follows("raise Limits.pixels if you trust the data.")
def test_an_image_with_many_pixels(tmp_path, capsys):
    data, shard = png(40, 30), tmp_path / "x.tar"
    with hinted("raise Limits.pixels if you trust the data.", DecompressionBomb):
        decoded("png", data, "pil", limits=tarmac.Limits(pixels=1199))
    assert decoded("png", data, "pil", limits=tarmac.Limits(pixels=1200)).size == (40, 30)
    shard.write_bytes(plain([("a.png", data)]))
    command = ["check", str(shard), "--decode", "-j", "1", "--limits"]
    assert run([*command, "pixels=1199"]) == 1
    assert "raise --limits pixels=N if you trust the data." in capsys.readouterr().out
    assert run([*command, "pixels=1200"]) == 0


@follows("raise PIL.Image.MAX_IMAGE_PIXELS if you trust the data.")
def test_an_image_with_too_many_pixels_for_pillow(monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 100)
    with hinted("raise PIL.Image.MAX_IMAGE_PIXELS if you trust the data.", DecompressionBomb):
        decoded("bmp", bitmap(), "pil")
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 10_000)
    assert decoded("bmp", bitmap(), "pil").size == (40, 30)


def bitmap():
    stream = io.BytesIO()
    PIL.new("L", (40, 30)).save(stream, "BMP")
    return stream.getvalue()


@follows('png, or image.convert("RGB").')
def test_a_transparent_jpeg(tmp_path):
    image = PIL.new("RGBA", (4, 3))
    with hinted('png, or image.convert("RGB").', EncodeFailed):
        written(tmp_path / "x.tar", jpg=image)
    sample = written(tmp_path / "y.tar", png=image, jpg=image.convert("RGB"))
    assert sample["png"].size == sample["jpg"].size == (4, 3)


@follows("use a json or pkl field.")
def test_an_array_of_objects(tmp_path):
    value = np.array([{"x": 1}, None])
    with hinted("use a json or pkl field.", EncodeFailed):
        written(tmp_path / "x.tar", ten=value)
    with tarmac.TarWriter(tmp_path / "y.tar") as writer:
        writer.write({"__key__": "a", "pkl": value, "json": value.tolist()})
    (sample,) = tarmac.WebDataset(str(tmp_path / "y.tar")).decode(allow_pickle=True)
    assert sample["pkl"].tolist() == sample["json"] == value.tolist()


@follows("convert with array.astype, or use an npy field.")
def test_an_array_that_tenbin_does_not_support(tmp_path):
    array = np.array([1 + 2j])
    with hinted("convert with array.astype, or use an npy field.", EncodeFailed):
        written(tmp_path / "x.tar", ten=array)
    sample = written(tmp_path / "y.tar", npy=array, ten=array.real.astype("f4"))
    assert sample["npy"].tolist() == [1 + 2j]
    assert sample["ten"][0].tolist() == [1]


@follows("tarmac.webdataset.handle_extension decodes names with several dots, such as seg.png.")
def test_an_extension_with_dots():
    hint = "tarmac.webdataset.handle_extension decodes names with several dots, such as seg.png."
    with hinted(hint, UsageError):
        Codec("seg.png", decode=len)
    assert decoded("seg.png", b"12345", tarmac.webdataset.handle_extension("seg.png", len)) == 5


@follows("another extension, or `replace=True`.")
def test_an_extension_that_is_registered(monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    with hinted("another extension, or `replace=True`.", UsageError):
        tarmac.register_codec(Codec("json", decode=len))
    tarmac.register_codec(Codec("json2", decode=len))
    assert decoded("json2", b"[1]") == 3
    tarmac.register_codec(Codec("json", decode=len), replace=True)
    assert decoded("json", b"[1]") == 3


@follows("the bytes of the file: pathlib.Path(path).read_bytes().")
def test_a_path_instead_of_an_image(tmp_path):
    path = tmp_path / "image.bmp"
    path.write_bytes(bitmap())
    with hinted("the bytes of the file: pathlib.Path(path).read_bytes().", EncodeFailed):
        written(tmp_path / "x.tar", bmp=str(path))
    with hinted("the bytes of the file: pathlib.Path(path).read_bytes().", EncodeFailed):
        written(tmp_path / "x.tar", bmp=path)
    assert written(tmp_path / "y.tar", bmp=Path(path).read_bytes())["bmp"].size == (40, 30)


@follows("pass bytes, use a known extension, or tarmac.register_codec.")
def test_a_field_without_a_codec(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    with hinted("pass bytes, use a known extension, or tarmac.register_codec.", NoCodec):
        written(tmp_path / "x.tar", custom=[1])
    sample = written(tmp_path / "y.tar", custom=b"[1]", json=[1])
    assert (sample["custom"], sample["json"]) == (b"[1]", [1])
    tarmac.register_codec(Codec("custom", decode=json.loads, encode=lambda value: json.dumps(value).encode()))
    assert written(tmp_path / "z.tar", custom=[1])["custom"] == [1]


@follows("for data you trust, allow_pickle=True or tarmac.codecs.unsafe.torch_handler.")
def test_a_torch_file_with_objects():
    torch = pytest.importorskip("torch")
    stream = io.BytesIO()
    torch.save({"path": Path("x")}, stream)
    with hinted("for data you trust, allow_pickle=True or tarmac.codecs.unsafe.torch_handler.", UnsafeCodec):
        decoded("pth", stream.getvalue())
    for trusted in (
        decoded("pth", stream.getvalue(), allow_pickle=True),
        decoded("pth", stream.getvalue(), tarmac.codecs.unsafe.torch_handler),
    ):
        assert trusted == {"path": Path("x")}


@follows("cut it into shorter recordings, or raise Limits.media_bytes if you trust the data.")
def test_a_long_recording():
    soundfile = pytest.importorskip("soundfile")
    pytest.importorskip("torch")

    def recording(length):
        stream = io.BytesIO()
        soundfile.write(stream, np.zeros(length, "f4"), 16_000, format="FLAC")
        return stream.getvalue()

    low = tarmac.Limits(media_bytes=8000)
    with hinted(
        "cut it into shorter recordings, or raise Limits.media_bytes if you trust the data.",
        DecompressionBomb,
    ):
        decoded("flac", recording(5000), wds.torch_audio, limits=low)
    assert decoded("flac", recording(1000), wds.torch_audio, limits=low)[0].shape == (1, 1000)
    high = tarmac.Limits(media_bytes=80_000)
    assert decoded("flac", recording(5000), wds.torch_audio, limits=high)[0].shape == (1, 5000)


TWICE = "decode only once, or with partial=True, or name the fields to decode with only=."


@follows("decode only once, or with partial=True, or name the fields to decode with only=.")
def test_fields_that_are_decoded_already(tmp_path):
    shard = tmp_path / "x.tar"
    shard.write_bytes(plain([("a.cls", b"7"), ("a.json", b"[1]")]))

    def decode(**options):
        (sample,) = tarmac.WebDataset(str(shard)).decode(only="cls").decode(**options)
        return sample["cls"], sample["json"]

    with hinted(TWICE, DecodeFailed):
        decode()
    assert decode(partial=True) == decode(only="json") == (7, [1])
    (once,) = tarmac.WebDataset(str(shard)).decode()
    assert (once["cls"], once["json"]) == (7, [1])


@follows('decode("rgb8", size=256).')
def test_a_size_without_a_format(tmp_path):
    with tarmac.TarWriter(tmp_path / "x.tar", index=True) as writer:
        writer.write({"__key__": "a", "png": np.zeros((300, 400, 3), "u1")})
    dataset = tarmac.Dataset(str(tmp_path / "x.tar"))
    with hinted('decode("rgb8", size=256).', UsageError):
        dataset.decode(size=256)
    assert dataset.decode("rgb8", size=256)[0]["png"].shape == (256, 341, 3)
