"""Detecting, reading and writing compressed streams."""

from __future__ import annotations

import builtins
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.shards import COMPRESSED_KINDS, plain
from tarmac.errors import CompressionDamaged, TrailingData, UsageError
from tarmac.limits import DEFAULT_LIMITS
from tarmac.tar import read_members
from tarmac.tar.compression import FORMATS, Decompressing, compressing, detect, format_of_name
from tarmac.tar.writer import END_MARKER, HeaderBuilder, Owner, member_block


def pack(data: bytes, form: str) -> bytes:
    sink = io.BytesIO()
    stream = compressing(sink, form)
    for start in range(0, len(data), 1000):
        stream.write(data[start : start + 1000])
    stream.close()
    return sink.getvalue()


def unpack(data: bytes, form: str, size: int = 1 << 20) -> bytes:
    stream = Decompressing(io.BytesIO(data), form, DEFAULT_LIMITS)
    parts = []
    while part := stream.read(size):
        assert len(part) <= size
        parts.append(part)
    assert stream.read(size) == b""
    return b"".join(parts)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.binary(max_size=5000), st.sampled_from(sorted(FORMATS)), st.integers(1, 3000))
def test_round_trip_in_chunks_of_any_size(data, form, size):
    packed = pack(data, form)
    assert detect(packed) == form
    assert unpack(packed, form, size) == data
    assert pack(data, form) == packed


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_compressors_write_checksums(form):
    """A flipped bit is detected, or changes nothing (unused bits of a header)."""
    packed = pack(plain(), form)
    for position in range(len(packed)):
        changed = bytearray(packed)
        changed[position] ^= 1
        try:
            assert unpack(bytes(changed), form) == plain()
        except (CompressionDamaged, TrailingData):
            continue


def test_format_of_name():
    assert [
        format_of_name(name) for name in ("a.tar", "a.tgz", "A.TAR.GZ", "a.tar.zst", "a.txz", "a.tar.bz2")
    ] == [
        None,
        "gz",
        "gz",
        "zst",
        "xz",
        "bz2",
    ]


def test_detection():
    assert detect(plain()) is None
    assert detect(b"") is None
    for form, make in COMPRESSED_KINDS.items():
        assert detect(make()) == form


def test_unknown_and_missing_formats(monkeypatch):
    with pytest.raises(UsageError, match="compress"):
        compressing(io.BytesIO(), "rar")
    real = builtins.__import__

    def without_zstd(name, *args, **kwargs):
        if name.startswith(("compression", "backports")):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_zstd)
    with pytest.raises(ImportError, match=r"tarmac\[zstd\]"):
        compressing(io.BytesIO(), "zst")


@pytest.mark.parametrize("name", [b"\x1f\x8b\x08.txt", b"BZh91AY&SY.txt", b"\x28\xb5\x2f\xfd.txt"])
def test_a_name_that_begins_like_a_compressed_stream(name):
    archive = member_block(HeaderBuilder(Owner()), name, b"1") + END_MARKER
    for source in (archive, io.BytesIO(archive)):
        assert [member[0] for member in read_members(source)] == [name]
