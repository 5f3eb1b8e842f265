"""tenbin is compatible with webdataset in both directions; hostile chunks raise."""

from __future__ import annotations

import contextlib
import io
import struct

import numpy as np
import pytest
import webdataset.tenbin as theirs
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tarmac.codecs import Decoder
from tarmac.compat.webdataset import tenbin
from tarmac.errors import CodecError, DecodeFailed, DecompressionBomb, EncodeFailed

TYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
ARRAYS = st.sampled_from(TYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


def same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@given(st.lists(ARRAYS, max_size=4))
def test_round_trip(arrays):
    data = tenbin.encode_buffer(arrays)
    for back in (
        tenbin.decode_buffer(data),
        tenbin.decode_buffer(bytearray(data)),
        tenbin.decode_buffer(memoryview(data)),
        tenbin.read(io.BytesIO(data)),
        Decoder([])({"ten": data})["ten"],
    ):
        same(back, arrays)
        assert all(array.flags.writeable for array in back)


@given(st.lists(ARRAYS.filter(lambda array: array.dtype != "u4" and array.ndim), max_size=4))
def test_bytes_equal_those_of_webdataset(arrays):
    names = [f"a{number}" for number in range(len(arrays))]
    assert tenbin.encode_buffer(arrays) == theirs.encode_buffer(arrays)
    assert tenbin.encode_buffer(arrays, infos=names) == theirs.encode_buffer(arrays, infos=names)
    same(theirs.decode_buffer(tenbin.encode_buffer(arrays)), arrays)


def test_infos():
    arrays = [np.arange(3), np.ones(2)]
    data = tenbin.encode_buffer(arrays, infos=["one", "two"])
    back, names = tenbin.decode_buffer(data, infos=True)
    same(back, arrays)
    assert names == ["one", "two"]
    same(tenbin.decode_buffer(data, infos=["one", "two"]), arrays)
    for wrong in (["one", "three"], ["one"], ["one", "two", "three"]):
        with pytest.raises(ValueError, match="one"):
            tenbin.decode_buffer(data, infos=wrong)
    with pytest.raises(ValueError):
        tenbin.decode_buffer(data, infos="one")
    for wrong in (["one"], ["123456789", "x"], ["ü", "x"], ["a\0b", "x"]):
        with pytest.raises(EncodeFailed):
            tenbin.encode_buffer(arrays, infos=wrong)


def test_invalid_arrays():
    with pytest.raises(EncodeFailed, match="ndarray"):
        tenbin.encode_buffer(np.zeros(3))
    for bad in (np.array([True]), np.array(["x"]), np.array([1j]), np.array([object()]), np.zeros((1,) * 10)):
        with pytest.raises(EncodeFailed):
            tenbin.encode_buffer([bad])


def test_files_and_streams(tmp_path):
    arrays = [np.arange(3), np.ones((2, 2), "f4"), np.array(5, "u4")]
    name = str(tmp_path / "a.ten")
    tenbin.save(name, *arrays, infos=["a", "b", "c"])
    same(tenbin.load(name), arrays)
    assert tenbin.load(name, infos=True)[1] == ["a", "b", "c"]
    other = str(tmp_path / "a.bin")
    for call in (lambda: tenbin.save(other, *arrays), lambda: tenbin.load(other)):
        with pytest.raises(ValueError, match=r"\.ten"):
            call()
    tenbin.save(other, *arrays, nocheck=True)
    same(tenbin.load(other, nocheck=True), arrays)
    stream = io.BytesIO()
    tenbin.write(stream, arrays)
    stream.seek(0)
    same(tenbin.read(stream, 2), arrays[:2])
    same(tenbin.read(stream), arrays[2:])


def chunk(data, length=None):
    return (
        b"~TenBin~"
        + struct.pack("<q", len(data) if length is None else length)
        + data
        + bytes(-len(data) % 64)
    )


def header(short=b"f4", info=b"", rank=1, shape=(1,)):
    return struct.pack(f"<8s8sq{len(shape)}q", short, info, rank, *shape)


GOOD = chunk(header()) + chunk(bytes(4))
HUGE = (2**62, 2**63 - 1, 2**32, 2**40)
HOSTILE = [
    *(
        b"~TenBin~" + struct.pack("<q", length) + bytes(48)
        for length in (-64, -1, -(2**63), -128, 2**62, 49, 2**63 - 1)
    ),
    *(chunk(header(shape=(size,))) + chunk(b"") for size in HUGE),
    *(chunk(header(shape=(size,))) + chunk(bytes(4)) for size in HUGE),
    *(chunk(header(rank=2, shape=(2**32, size))) + chunk(b"") for size in HUGE),
    *(chunk(header(shape=(size,))) + chunk(bytes(4)) for size in (-1, -4, -(2**63))),
    *(chunk(header(rank=2, shape=(-1, size))) + chunk(bytes(4)) for size in (-1, 0, 1)),
    *(chunk(header(rank=rank)) + chunk(bytes(4)) for rank in (-1, 0, 2, 10, 2**62)),
    chunk(header(rank=10, shape=(1,) * 10)) + chunk(bytes(4)),
    *(
        chunk(header(short=short)) + chunk(bytes(4))
        for short in (b"O", b"b1", b"", b"f16", b"\xff" * 8, b"unit32")
    ),
    chunk(header(info=b"\xff\xfe")) + chunk(bytes(4)),
    chunk(header()),
    chunk(header()) + chunk(b"\0\0\0"),
    chunk(header()) + chunk(bytes(5)),
    chunk(b"") + chunk(b""),
    chunk(b"f4") + chunk(bytes(4)),
    GOOD[:10],
    GOOD[:99],
    GOOD[:-62],
    GOOD + b"x",
    GOOD + bytes(64),
    GOOD + chunk(header()),
    b"\0" * 64,
    b"x",
    b"~TenBin~",
    b"~TenBin~" + bytes(7),
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_chunks(data):
    with pytest.raises(CodecError):
        tenbin.decode_buffer(data)
    with pytest.raises(CodecError):
        tenbin.read(io.BytesIO(data))
    with pytest.raises(CodecError, match='sample "k"'):
        Decoder([])({"__key__": "k", "tb": data})


def test_valid_chunks_and_a_huge_one():
    assert tenbin.decode_buffer(GOOD)[0].tolist() == [0]
    assert tenbin.decode_buffer(GOOD[:100])[0].tolist() == [0]  # only padding is missing
    assert tenbin.decode_buffer(b"") == []
    with pytest.raises(DecompressionBomb):
        tenbin.read(io.BytesIO(b"~TenBin~" + struct.pack("<q", 2**62)))


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_flipped_bytes_give_arrays_or_typed_errors(position, value):
    damaged = bytearray(GOOD)
    damaged[position] = value
    with contextlib.suppress(DecodeFailed):
        tenbin.decode_buffer(damaged)
