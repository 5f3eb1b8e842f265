"""Decoder: the order of handlers, plans per field name, and errors with a location."""

from __future__ import annotations

import gzip
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import webdataset.autodecode as theirs
from hypothesis import given
from hypothesis import strategies as st

from tarmac.codecs import Decoder, imagehandler
from tarmac.codecs.compression import gzfilter
from tarmac.codecs.decode import _MAX_PLANS, DecodingError
from tarmac.codecs.handlers import Continue, handle_extension
from tarmac.codecs.images import ImageHandler
from tarmac.codecs.media import torch_audio, torch_video
from tarmac.codecs.registry import basichandlers
from tarmac.errors import CodecError, DecodeFailed


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


SAMPLE = {
    "__key__": "a/b",
    "__url__": "x.tar",
    "json": b'{"a": [1, 2.5, null]}',
    "cls": b"17",
    "txt": "ü".encode(),
    "left.npy": npy(np.arange(6, dtype="f4").reshape(2, 3)),
    "index.gz": gzip.compress(b"3"),
    "unknown": b"raw",
    "jpg": b"not decoded without a spec",
}


def same(a, b):
    assert list(a) == list(b)
    for field, value in a.items():
        assert type(value) is type(b[field]), field
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, b[field])
            assert value.dtype == b[field].dtype
        else:
            assert value == b[field]


def test_values_equal_those_of_webdataset():
    ours = Decoder([])
    for _ in range(2):  # the second time with the cached plans
        same(ours(SAMPLE), theirs.Decoder([])(SAMPLE))
    assert ours(SAMPLE)["left.npy"].flags.writeable
    assert SAMPLE["cls"] == b"17"  # the sample given stays as it is


@pytest.mark.parametrize("only", ["cls json", ["cls", "json"], {"cls"}, "left.npy", "npy", ""])
def test_only(only):
    same(Decoder([], only=only)(SAMPLE), theirs.Decoder([], only=only)(SAMPLE))


def test_only_leaves_other_values_alone():
    assert Decoder([], only="cls")({"cls": b"1", "x": 5, "y": None}) == {"cls": 1, "x": 5, "y": None}


def test_partial():
    decode = Decoder([], partial=True)
    assert decode({"cls": 5, "txt": b"x", "json": None}) == {"cls": 5, "txt": "x", "json": None}
    for value in (5, None, "text", bytearray(b"1"), np.zeros(3)):
        with pytest.raises(DecodeFailed, match=r'field "cls": .*partial=True'):
            Decoder([])({"cls": value})


def test_bytes_of_a_subclass_are_bytes():
    class Mine(bytes):
        pass

    assert Decoder([])({"cls": Mine(b"5"), "raw": Mine(b"x")}) == {"cls": 5, "raw": b"x"}


def test_metadata():
    decoded = Decoder([])(
        {"__key__": b"k", "__url__": "u", "__x__": b"\xff", "__local_path__": None, "__n__": 3}
    )
    assert decoded == {"__key__": "k", "__url__": "u", "__x__": b"\xff", "__local_path__": None, "__n__": 3}


class Recorder:
    """A custom handler that records its calls."""

    def __init__(self, answer=None):
        self.calls = []
        self.answer = answer

    def __call__(self, key, data):
        self.calls.append((key, data))
        return self.answer


def test_custom_handlers_are_called_every_time_and_in_order():
    first, second = Recorder(), Recorder("answer")
    decode = Decoder([first, second])
    for _ in range(3):
        assert decode({"a.cls": b"1", "txt.gz": gzip.compress(b"2")}) == {
            "a.cls": "answer",
            "txt.gz": "answer",
        }
    assert first.calls == second.calls == [(".a.cls", b"1"), (".txt", b"2")] * 3
    assert Decoder([Recorder()])({"cls": b"1", "x": b"2"}) == {"cls": 1, "x": b"2"}


def test_continue_passes_to_the_handlers_after_the_one_that_returned_it():
    def strip(key, data):
        return Continue(key[:-4], data[4:]) if key.endswith(".enc") else None

    first, last = Recorder(), Recorder()
    decode = Decoder([first, strip, last])
    reference = theirs.Decoder(
        [lambda key, data: theirs.Continue(key[:-4], data[4:]) if key.endswith(".enc") else None]
    )
    for field, data in (
        ("json.enc", b"xxxx[1]"),
        ("cls.enc", b"xxxx5"),
        ("raw.enc", b"xxxxy"),
        ("json.gz.enc", b"12345"),
    ):
        assert decode({field: data}) == reference({field: data})
    assert [key for key, _ in first.calls] == [".json.enc", ".cls.enc", ".raw.enc", ".json.gz.enc"]
    assert [key for key, _ in last.calls] == [".json", ".cls", ".raw", ".json.gz"]
    by_extension = Decoder([handle_extension("enc", lambda data: Continue(".json", data))])
    assert by_extension({"x.enc": b"null"}) == {"x.enc": None}


def test_an_extension_handler_that_returns_none_passes_the_field_on():
    decode = Decoder([handle_extension("cls", lambda data: None if data == b"1" else "other")])
    assert decode({"cls": b"1", "a.cls": b"2"}) == {"cls": 1, "a.cls": "other"}


def test_pre_and_post_replace_the_defaults():
    assert Decoder([], pre=[])({"cls.gz": b"1"}) == {"cls.gz": b"1"}
    assert Decoder([], post=[])({"cls": b"1"}) == {"cls": b"1"}
    assert Decoder([], pre=[gzfilter, gzfilter])({"cls.gz.gz": gzip.compress(gzip.compress(b"4"))}) == {
        "cls.gz.gz": 4
    }
    assert Decoder([], post=[lambda key, data: key])({"cls": b"1"}) == {"cls": ".cls"}


def test_a_subclass_that_overrides_the_call_is_called():
    class Mine(ImageHandler):
        def __call__(self, key, data):
            return "mine"

    assert Decoder([Mine("rgb")])({"jpg": b"", "cls": b""}) == {"jpg": "mine", "cls": "mine"}


@given(st.lists(st.sampled_from(["cls", "json", "a.cls", "cls.gz", "x", "png", "__x__"]), max_size=12))
def test_cached_plans_do_not_change_values(fields):
    values = {
        "cls": b"1",
        "json": b"2",
        "a.cls": b"3",
        "cls.gz": gzip.compress(b"4"),
        "x": b"5",
        "png": b"6",
        "__x__": b"7",
    }
    decode = Decoder([handle_extension("png", bytes.upper)])
    for field in fields:
        assert decode({field: values[field]}) == Decoder([handle_extension("png", bytes.upper)])(
            {field: values[field]}
        )


def test_the_number_of_cached_plans_is_bounded():
    decode = Decoder([])
    for number in range(3 * _MAX_PLANS):
        assert decode({f"{number}.cls": b"1"}) == {f"{number}.cls": 1}
    assert len(decode._plans) <= _MAX_PLANS


def test_decoders_are_picklable_after_use():
    decode = Decoder(
        [imagehandler("rgb8"), torch_video, torch_audio, handle_extension("x", bytes.upper)], only="cls x"
    )
    assert decode({"cls": b"1", "x": b"a", "y": b"b"}) == {"cls": 1, "x": b"A", "y": b"b"}
    copy = pickle.loads(pickle.dumps(decode))
    assert copy({"cls": b"1", "x": b"a", "y": b"b"}) == {"cls": 1, "x": b"A", "y": b"b"}
    assert copy.handlers[-1] is basichandlers
    assert "ImageHandler('rgb8')" in repr(copy)


@pytest.mark.parametrize("bad", ["rgb", [5], ["rgb"]])
def test_invalid_handlers(bad):
    with pytest.raises(TypeError):
        Decoder(bad)


def test_errors_have_a_location_and_a_cause():
    sample = {"__key__": "a/b", "__url__": "https://me:SECRET@h/x.tar?sig=SECRET", "cls": b"no number"}
    with pytest.raises(DecodingError, match=r'sample "a/b": field "cls": ValueError') as caught:
        Decoder([])(sample)
    error = caught.value
    assert isinstance(error, DecodeFailed)
    assert isinstance(error, ValueError)
    assert isinstance(error.__cause__, ValueError)
    assert (error.key, error.field) == ("a/b", "cls")
    assert "SECRET" not in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    with pytest.raises(DecodeFailed, match=r'^field "cls"'):
        Decoder([])({"cls": b""})
    with pytest.raises(DecodeFailed, match="list"):
        Decoder([])([b"1"])


def test_errors_do_not_keep_the_sample():
    def fails(key, data):
        raise RuntimeError("x" * 10_000)

    with pytest.raises(DecodeFailed) as caught:
        Decoder([fails])({"__key__": "k", "a": b"the bytes"})
    assert len(str(caught.value)) < 500
    assert all(value is None or isinstance(value, str) for value in vars(caught.value).values())
    assert b"the bytes" not in pickle.dumps(caught.value)


def test_errors_of_codecs_are_completed_not_wrapped():
    def fails(key, data):
        raise CodecError("went wrong.")

    with pytest.raises(CodecError, match=r'^u, sample "k": field "a": went wrong.$') as caught:
        Decoder([fails])({"__key__": "k", "__url__": "u", "a": b""})
    assert type(caught.value) is CodecError


def test_only_missing_extras_stay_import_errors(monkeypatch):
    def fails(key, data):
        raise ImportError("of the data")

    with pytest.raises(DecodeFailed, match="ImportError: of the data"):
        Decoder([fails])({"a": b""})
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(ImportError, match=r"tarmac-data\[msgpack\]"):
        Decoder([])({"mp": b"\x01"})


def test_decode_one_field():
    assert Decoder([]).decode1("cls.gz", gzip.compress(b"5")) == 5
    assert Decoder([]).decode1("what", b"5") == b"5"


def test_importing_codecs_imports_no_heavy_library():
    heavy = {"numpy", "PIL", "torch", "simplejpeg", "av", "soundfile"}
    script = f"import sys, tarmac.codecs; print(*{heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
