"""The small functions that programs import from webdataset's submodules."""

from __future__ import annotations

import gzip
import io
import pickle
from fnmatch import fnmatch

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image

from tarmac.errors import UnsafeCodec
from tarmac.storage import enforce_security
from tarmac.webdataset import autodecode, filters, mix, shardlists, tariterators, utils, writer


def ordered(sample):
    return sorted(sample.items()) if isinstance(sample, dict) else sample


def test_functions_of_data_for_all_stages():
    samples = [{"__key__": "a", "x": 1}, {"__key__": "b", "x": 2}]
    for name, args, kw in [
        ("_map", (lambda sample: sample["x"],), {}),
        ("_select", (lambda sample: sample["x"] > 1,), {}),
        ("_to_tuple", ("__key__", "x"), {}),
        ("_batched", (2,), {}),
        ("_rename", (), {"y": "x"}),
        ("_map_dict", (), {"x": str}),
        ("_info", (), {"n": 0}),
        ("_associate", ({"a": {"z": 1}},), {}),
    ]:
        ours = list(getattr(filters, name)([dict(sample) for sample in samples], *args, **kw))
        theirs = list(getattr(webdataset.filters, name)([dict(sample) for sample in samples], *args, **kw))
        assert repr(list(map(ordered, ours))) == repr(list(map(ordered, theirs))), name
    assert list(pickle.loads(pickle.dumps(filters._batched))(range(3), 2, None)) == [[0, 1], [2]]
    assert list(filters.pipeline(range(4), filters.slice(2))) == [0, 1]
    assert sorted(filters._shuffle(iter(range(9)), 5, 2)) == list(range(9))
    assert list(shardlists.resampled_([1], 3)) == [1, 1, 1]
    assert list(mix.round_robin_shortest(iter("ab"), iter("cd"))) == list("acbd")


def test_helpers_of_filters():
    assert filters.identity(3) == 3
    assert filters.parse_field_spec("jpg;png cls") == [["jpg", "png"], ["cls"]]
    assert filters.combine_values([1, 2]).tolist() == [1, 2]
    assert filters.combine_values([torch.ones(2)] * 2).shape == (2, 2)
    assert filters.combine_values([1, 2], combine_scalars=False) == [1, 2]
    assert filters.dict2tuple(filters.tuple2dict(("a", "b"))) == ("a", "b")
    assert filters.tuple2dict({"x": 1}) == {"x": 1}
    for path in ("a/x.txt", "bin", "x.y", "__key__"):
        ours, theirs = (
            lib.filters.find_decoder([("*.txt", 1), ("*.bin", 2)], path) for lib in (webdataset, module)
        )
        assert callable(ours) == callable(theirs)
        assert callable(ours) or ours == theirs
    assert filters.decode_pickle(io.BytesIO(pickle.dumps([1]))) == [1]
    enforce_security()
    try:
        with pytest.raises(UnsafeCodec):
            filters.decode_pickle(io.BytesIO(pickle.dumps([1])))
    finally:
        enforce_security(False)


class module:
    filters = filters


def test_helpers_of_utils(tmp_path, monkeypatch):
    assert utils.is_iterable([])
    assert not utils.is_iterable("text")
    assert not utils.is_iterable(b"text")
    assert utils.fnmatch_with_braces("a.tgz", "*.{tar,tgz}")
    assert not fnmatch("a.tgz", "*.{tar,tgz}")
    (tmp_path / "a.tgz").touch()
    assert utils.glob_with_braces(f"{tmp_path}/*.{{tar,tgz}}") == [str(tmp_path / "a.tgz")]
    assert utils.compute_sample_weights([(10, 1), (5, 1)]).tolist() == [1, 0.5]
    assert list(utils.repeatedly0([1, 2, 3], 2, 2)) == [1, 2, 1, 2]
    assert list(utils.repeatedly0(iter([1]), 5)) == [1]
    monkeypatch.setenv("WDS_ROOT", "/data")
    monkeypatch.setenv("HOME", "/home/x")
    assert shardlists.envsubst("${ROOT}/x") == "/data/x"
    assert shardlists.expand("~/$WDS_ROOT") == "/home/x//data"
    assert list(tariterators.shardlist("x-{0..1}")) == [{"url": "x-0"}, {"url": "x-1"}]
    assert sorted(item["url"] for item in tariterators.shardlist(["b", "a"], shuffle=True)) == ["a", "b"]


def test_decoders():
    assert autodecode.default_decoder({"cls": b"3"}) == {"cls": 3}
    assert autodecode.call_extension_handler(".x.Cls", b"3", int, ["cls"]) == 3
    assert autodecode.call_extension_handler(".seg.png", b"3", int, [["seg", "png"]]) == 3
    assert autodecode.call_extension_handler(".png", b"3", int, ["jpg"]) is None


def test_encoders():
    sample = {"__key__": "k", "cls": 3, "json.gz": {"x": 1}, "txt": "t", "bin": b"b"}
    encoded = writer.encode_based_on_extension(sample, writer.default_handlers)
    assert gzip.decompress(encoded.pop("json.gz")) == b'{"x": 1}'
    assert encoded == {"__key__": "k", "cls": b"3", "txt": b"t", "bin": b"b"}
    for spec in (True, {"cls": str.encode, "txt": str}):
        assert pickle.loads(pickle.dumps(writer.make_encoder(spec)))({"txt": "t"}) == {"txt": b"t"}
    assert writer.make_encoder(None)(sample) is sample
    assert writer.make_encoder(dict) is dict
    with pytest.raises(ValueError, match="encoder"):
        writer.make_encoder(5)
    table = writer.make_handlers()
    writer.add_handlers(table, "aa bb", str)
    assert table["aa"] is table["bb"] is str
    assert "aa" not in writer.default_handlers
    assert writer.bytestr(5) == b"5"
    assert writer.bytestr(b"x") == b"x"
    image = np.full((4, 4, 3), 7, np.uint8)
    for form, known in (("PNG", "PNG"), ("jpg", "JPEG"), ("PPM", "PPM")):
        assert Image.open(io.BytesIO(writer.imageencoder(image, form))).format == known
    assert writer.mp_dumps([1]) == b"\x91\x01"
    assert writer.cbor_dumps([1]) == b"\x81\x01"
