"""No data is executed unless the caller allows it, and never in secure mode."""

from __future__ import annotations

import builtins
import contextlib
import gzip
import io
import os
import pathlib
import pickle
import warnings
import zipfile

import numpy as np
import pytest
import torch

from tarmac.codecs import Decoder, imagehandler, unsafe
from tarmac.codecs.arrays import npy_loads, npz_loads, torch_loads
from tarmac.codecs.registry import basichandlers, registered_codecs
from tarmac.codecs.tenbin import tenbin_loads
from tarmac.environment import enforce_security
from tarmac.errors import UnsafeCodec


class Evil:
    """A value whose pickle calls a function."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def evils(canary):
    """Yield values that create the file when unpickled."""
    code = f"open({str(canary)!r}, 'w').close()"
    yield Evil(builtins.exec, code)
    yield Evil(builtins.eval, f"__import__('os').mkdir({str(canary)!r})")
    yield Evil(os.system, f"touch {canary}")
    yield Evil(os.mkdir, str(canary))
    yield Evil(pathlib.Path.touch, pathlib.Path(canary))
    yield [Evil(builtins.exec, code)]
    yield {"a": {"b": (1, Evil(os.mkdir, str(canary)))}}


def as_npy(value):
    array = np.empty(1, object)
    array[0] = value
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def as_structured_npy(value):
    array = np.zeros(1, [("a", "i4"), ("b", "O")])
    array[0]["b"] = value
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def as_npz(value, member="a.npy", encode=as_npy):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(member, encode(value))
    return stream.getvalue()


def as_torch(value, **options):
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


FORMATS = {
    "pickle0": lambda value: pickle.dumps(value, 0),
    "pickle2": lambda value: pickle.dumps(value, 2),
    "pickle4": lambda value: pickle.dumps(value, 4),
    "pickle5": lambda value: pickle.dumps(value, 5),
    "npy": as_npy,
    "structured": as_structured_npy,
    "npz": as_npz,
    "npz without a name": lambda value: as_npz(value, "a"),
    "npz with a pickle": lambda value: as_npz(value, "a.pkl", pickle.dumps),
    "torch": as_torch,
    "old torch": lambda value: as_torch(value, _use_new_zipfile_serialization=False),
}
DECODERS = {name: codec.decode for name, codec in registered_codecs() if codec.decode is not None}
FIELDS = sorted({*DECODERS, "x.pkl", "a.b.pth", "PKL", "Pyd", "PTH", "NPY", "NPZ", "jpg", "png", "npy.npz"})
CASES = [(name, number) for name in FORMATS for number in range(7)]


@pytest.fixture(autouse=True)
def mode():
    yield
    enforce_security(False)


def ignore_errors(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(Exception):
            call()


@pytest.mark.parametrize(("name", "number"), CASES)
def test_the_canary_never_fires(name, number, tmp_path):
    canary = tmp_path / "canary"
    data = FORMATS[name](list(evils(canary))[number])
    plain = [Decoder([]), Decoder([imagehandler("pil")]), Decoder([imagehandler("rgb8")], partial=True)]
    trusting = Decoder(
        [unsafe.pickle_handler, unsafe.torch_handler, unsafe.objects_handler], allow_pickle=True
    )
    for field in FIELDS:
        for field_name, content in (
            (field, data),
            (f"{field}.gz", gzip.compress(data)),
            (f"{field}.GZ", gzip.compress(data)),
        ):
            sample = {"__key__": "k", "__url__": "u", field_name: content}
            for decode in plain:
                ignore_errors(lambda decode=decode, sample=sample: decode(sample))
        enforce_security()
        ignore_errors(lambda field=field: trusting({field: data}))
        enforce_security(False)
        ignore_errors(lambda field=field: basichandlers(f".{field}", data))
    for function in (*DECODERS.values(), npy_loads, npz_loads, torch_loads, tenbin_loads):
        ignore_errors(lambda function=function: function(data))
    assert not canary.exists()


TRUSTED = [
    ("pkl", pickle.dumps),
    ("pickle", pickle.dumps),
    ("pyd", pickle.dumps),
    ("npy", as_npy),
    ("npz", as_npz),
    ("pth", as_torch),
    ("pt", as_torch),
]


@pytest.mark.parametrize(("field", "encode"), TRUSTED)
def test_pickles_raise_with_a_hint_and_load_when_allowed(field, encode, tmp_path):
    canary = tmp_path / "canary"
    data = encode(Evil(os.mkdir, str(canary)))
    sample = {"__key__": "k", "__url__": "u.tar", field: data}
    with pytest.raises(
        UnsafeCodec, match=rf'u.tar, sample "k": field "{field}": .*allow_pickle=True'
    ) as caught:
        Decoder([])(sample)
    assert caught.value.field == field
    enforce_security()
    with pytest.raises(UnsafeCodec):
        Decoder([], allow_pickle=True)(sample)
    assert not canary.exists()
    enforce_security(False)
    Decoder([], allow_pickle=True)(sample)
    assert canary.exists()  # proves that the canary works


@pytest.mark.parametrize("variable", ["TARMAC_SECURE", "WDS_SECURE"])
def test_the_environment_enables_secure_mode(variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    for handler, data in (
        (unsafe.pickle_handler, {"pkl": pickle.dumps(1)}),
        (unsafe.torch_handler, {"pth": as_torch(1)}),
        (unsafe.objects_handler, {"npy": as_npy(1)}),
    ):
        with pytest.raises(UnsafeCodec, match=f'field "{next(iter(data))}"') as caught:
            Decoder([handler])(data)
        assert "allow_pickle" not in str(caught.value)


def test_passing_a_handler_allows_only_its_format():
    value = {"a": [1, None]}
    assert Decoder([unsafe.pickle_handler])({"x.pkl.gz": gzip.compress(pickle.dumps(value))}) == {
        "x.pkl.gz": value
    }
    assert Decoder([unsafe.objects_handler])({"npy": as_npy(value)})["npy"][0] == value
    assert Decoder([unsafe.torch_handler])({"pt": as_torch(torch.ones(2))})["pt"].tolist() == [1, 1]
    with pytest.raises(UnsafeCodec):
        Decoder([unsafe.pickle_handler])({"npy": as_npy(value)})
    assert pickle.loads(pickle.dumps(unsafe.pickle_handler))(".pkl", pickle.dumps(5)) == 5


def test_pickles_round_trip_when_allowed():
    value = {"a": {1, 2}}
    decode = pickle.loads(pickle.dumps(Decoder([], allow_pickle=True)))
    assert decode({"pkl": pickle.dumps(value), "pyd": pickle.dumps(None)}) == {"pkl": value, "pyd": None}


def test_tensors_load_in_secure_mode():
    enforce_security()
    for allow_pickle in (False, True):
        decoded = Decoder([], allow_pickle=allow_pickle)({"pth": as_torch({"w": torch.arange(3)})})
        assert decoded["pth"]["w"].tolist() == [0, 1, 2]
