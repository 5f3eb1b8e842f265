"""npy, npz and torch files decode as NumPy does, and headers cannot allocate memory."""

from __future__ import annotations

import io
import struct
import sys
import types
import zipfile

import numpy as np
import pytest
import torch
import webdataset.autodecode as theirs
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tarmac.codecs import Decoder, arrays, encode_field, find_encoder
from tarmac.codecs.arrays import npy_loads, npz_loads, torch_loads
from tarmac.errors import CodecError, DecodeFailed, DecompressionBomb, UnsafeCodec
from tarmac.limits import Limits

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
TYPES = st.one_of(
    hnp.scalar_dtypes().filter(lambda dtype: dtype.itemsize > 0),
    hnp.unicode_string_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.array_dtypes(hnp.integer_dtypes(), max_size=3),
)


def npy(array, **options):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, **options)
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore:Stored array in format")
@given(hnp.arrays(TYPES, SHAPES), st.booleans())
def test_arrays_decode_as_numpy_reads_them(array, fortran):
    if fortran:
        array = np.asfortranarray(array)
    data = npy(array, version=None)
    expected = np.load(io.BytesIO(data))
    for _ in range(2):
        back = npy_loads(data)
        assert back.dtype == expected.dtype
        assert back.shape == expected.shape
        assert back.tobytes() == expected.tobytes()
        assert back.flags.f_contiguous == expected.flags.f_contiguous
        assert back.flags.writeable
        assert back.flags.owndata or back.base.flags.owndata


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    "dtype", ["f4", ">i8", "S3", "U4", "M8[ns]", "c16", "?", [("ä", "f4"), ("b", "i2", 3)]]
)
def test_versions_and_types(version, dtype):
    if version == (3, 0) and isinstance(dtype, list):
        dtype = [("ä", "f4"), ("日本", "i2", 3)]
    array = np.zeros((3, 2), dtype)
    back = npy_loads(npy(array, version=version))
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


def test_arrays_equal_those_of_webdataset_and_do_not_share_the_bytes():
    array = np.random.default_rng(1).normal(size=(5, 4)).astype("f4")
    data = npy(array)
    np.testing.assert_array_equal(npy_loads(data), theirs.npy_loads(data))
    first = npy_loads(data)
    first[:] = 0
    np.testing.assert_array_equal(npy_loads(data), array)
    np.testing.assert_array_equal(npy_loads(data + b"more"), array)  # as numpy.load
    boxed = io.BytesIO()
    np.savez(boxed, a=array, b=np.arange(3))
    ours, other = npz_loads(boxed.getvalue()), theirs.npz_loads(boxed.getvalue())
    assert list(ours) == list(other)
    for name in ours:
        np.testing.assert_array_equal(ours[name], other[name])


def test_old_headers_with_long_integers():
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 1L), }".ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(8)
    with pytest.warns(UserWarning, match="Python 2"):
        assert npy_loads(data).shape == (2, 1)


def test_the_header_cache_is_bounded():
    for number in range(1, arrays._MAX_CACHED + 50):
        assert npy_loads(npy(np.zeros(number % 5000, "u1"))).shape == (number % 5000,)
    assert len(arrays._headers) <= arrays._MAX_CACHED
    many = np.zeros(1, [(f"field{number}", "u1") for number in range(200)])
    assert npy_loads(npy(many)).dtype == many.dtype
    assert all(len(front) <= arrays._MAX_CACHED_BYTES for front in arrays._headers)


def raw(descr="'<f4'", fortran="False", shape="(1,)", version=1, data=bytes(4), text=None, length=None):
    header = (
        text if text is not None else f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    ).encode()
    header = header.ljust(117) + b"\n"
    size = len(header) if length is None else length
    return (
        b"\x93NUMPY" + bytes((version, 0)) + struct.pack("<H" if version == 1 else "<I", size) + header + data
    )


INVALID_SHAPES = [
    "(-1,)",
    "(-4,)",
    "(2,)",
    "(-1, -1)",
    "(4611686018427387904,)",
    "(9223372036854775807,)",
    "(18446744073709551616,)",
    "(4294967296, 4294967296)",
    "(4294967296, 4294967296, 4294967296)",
    "(1" + "0" * 300 + ",)",
    "(65536, 65536)",
    "5",
    "'x'",
    "(1.5,)",
    "('a',)",
    "None",
    "[1]",
]
HOSTILE = [
    *(raw(shape=shape, version=version) for shape in INVALID_SHAPES for version in (1, 2, 3)),
    raw(shape="(0, -1)"),
    raw(shape="(0, 4611686018427387904)"),
    *(raw(descr=descr) for descr in ("'O'", "'|O'", "'O8'", "[('a', 'O')]", "'x'", "''", "5", "'<f4000000'")),
    *(raw(descr=descr, shape="(4611686018427387904,)") for descr in ("'S0'", "'V0'", "'U0'")),
    *(raw(descr="('<f4', (4294967296, 4294967296))", version=version) for version in (1, 2, 3)),
    *(
        raw(text=text)
        for text in ("", "{}", "[" * 90, "{'descr': '<f4'}", "__import__('os').getcwd()", "(" * 5000)
    ),
    *(raw(version=version) for version in (0, 4, 255)),
    *(raw(length=length) for length in (0, 65535, 119, 5)),
    *(raw(version=version, length=2**32 - 1) for version in (2, 3)),
    b"",
    b"\x93NUMPY",
    b"\x93NUMPY\x01\x00\x76\x00",
    b"x" * 200,
    raw(data=b"\0\0\0"),
    raw()[:100],
    raw(version=3)[:11],
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.filterwarnings("ignore")
def test_hostile_arrays(data):
    for _ in range(2):
        with pytest.raises(CodecError, match='u, sample "k": field "npy"'):
            Decoder([])({"__key__": "k", "__url__": "u", "npy": data})
    boxed = io.BytesIO()
    with zipfile.ZipFile(boxed, "w") as archive:
        archive.writestr("a.npy", data)
    if data.startswith(b"\x93NUMPY"):
        with pytest.raises(CodecError):
            Decoder([])({"npz": boxed.getvalue()})


def test_elements_of_size_zero():
    assert npy_loads(raw(descr="'S0'", shape="(3,)")).tolist() == [b"", b"", b""]


def npz(members, method=zipfile.ZIP_DEFLATED):
    boxed = io.BytesIO()
    with zipfile.ZipFile(boxed, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return boxed.getvalue()


def test_npz_bombs_and_damage():
    zeros = npy(np.zeros(100 << 20, "u1"))
    for members in ([("a.npy", zeros)], [("a.npy", zeros[: 40 << 20]), ("b.npy", zeros[: 40 << 20])]):
        with pytest.raises(DecompressionBomb, match=r"Limits\.expansion"):
            npz_loads(npz(members))
    small = npz([("a.npy", npy(np.zeros(50 << 20, "u1")))])
    assert npz_loads(small)["a"].nbytes == 50 << 20  # an empty mask is not a bomb
    with pytest.raises(DecompressionBomb):
        Decoder([], limits=Limits(member_bytes=1000))({"npz": npz([("a.npy", npy(np.arange(1000)))])})
    with pytest.raises(DecodeFailed, match=r"a\.npy"):
        npz_loads(npz([("a.npy", npy(np.arange(3)))], zipfile.ZIP_LZMA))
    data = npz([("a.npy", npy(np.arange(100)))])
    # a member cannot be larger than its directory entry says
    lying = data.replace(struct.pack("<I", len(npy(np.arange(100)))), struct.pack("<I", 200))
    for bad in (data[:-5], data[5:], lying, b"", b"PK", data[:60] + b"\xff\xff" + data[62:]):
        with pytest.raises(DecodeFailed):
            Decoder([])({"npz": bad})
    assert npz_loads(npz([("note.txt", b"hello"), ("x", npy(np.arange(2)))]))["note.txt"] == b"hello"


@pytest.mark.parametrize("field", ["npy", "npz", "pth", "pt", "ten", "tenbin", "tb", "a.npy.gz"])
@given(hnp.arrays(st.sampled_from(["f4", "i8", "u1"]), hnp.array_shapes(max_dims=3, max_side=4)))
def test_arrays_round_trip(field, array):
    value = {
        "npz": {"a": array, "b": array[:1]},
        "pth": torch.from_numpy(array.copy()),
        "pt": {"w": torch.ones(2)},
    }
    value = value.get(field, [array] if field.startswith("t") else array)
    back = Decoder([])({field: encode_field(field, value, find_encoder(field), "k")})[field]
    if isinstance(value, np.ndarray):
        np.testing.assert_array_equal(back, value)
    else:
        assert str(back) == str(value)


def test_torch_files():
    value = {"w": torch.arange(6).reshape(2, 3), "n": 5, "l": [torch.ones(2), "text"]}
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        stream = io.BytesIO()
        torch.save(value, stream, **options)
        assert str(torch_loads(stream.getvalue())) == str(value)
        with pytest.raises(CodecError):
            Decoder([])({"pth": stream.getvalue()[:-50]})
    for bad in (b"", b"x" * 100, b"PK\x03\x04" + bytes(100), npz([("a/data.pkl", b"\x80\x02]q\x00.")])):
        with pytest.raises(CodecError, match='field "pth"'):
            Decoder([])({"pth": bad})
    with pytest.raises(DecompressionBomb):
        torch_loads(npz([("archive/data.pkl", bytes(100 << 20))]))


def test_torch_before_2_6_is_rejected(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.5.1+cpu"))
    with pytest.raises(UnsafeCodec, match=r"2\.6"):
        torch_loads(b"")
