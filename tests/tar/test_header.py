"""Number fields and checksums."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.shards import plain
from tarmac.errors import BadChecksum, BadHeader
from tarmac.tar.header import checksum_key, classify, octal, padded, verify


@given(st.integers(0, 1 << 40))
def test_padding(size):
    assert padded(size) >= size
    assert padded(size) % 512 == 0
    assert padded(size) - size < 512


@given(st.integers(0, 8**11 - 1))
def test_octal_round_trip(number):
    for field in (b"%011o\0" % number, b"%011o " % number, b"%12o" % number, b"%012o" % number):
        assert octal(field, "size") == number


@given(st.integers(0, (1 << 63) - 1))
def test_base256_round_trip(number):
    assert octal(b"\x80" + number.to_bytes(11, "big"), "size") == number


@settings(derandomize=True)
@given(st.binary(min_size=512, max_size=512))
def test_the_fast_sum_agrees_with_the_slow_one(header):
    """The reader's comparison through Adler-32 accepts a header exactly when the byte sum does."""
    blank = header[:148] + b" " * 8 + header[156:]
    sealed = header[:148] + b"%06o\0 " % sum(blank) + header[156:]
    assert fast_sum(sealed) == checksum_key(sealed[148:156])
    verify(sealed)
    flipped = bytearray(sealed)
    flipped[200] ^= 1
    assert fast_sum(bytes(flipped)) != checksum_key(bytes(flipped[148:156]))
    with pytest.raises(BadChecksum, match="checksum"):
        verify(bytes(flipped))


def fast_sum(header):
    """Compute the sum as the reader does: Adler-32 of the first half plus a cached sum of the second."""
    return (zlib.adler32(header[:156]) & 0xFFFF) + classify(header[156:]).sum


def test_classify():
    header = plain()[:512]
    assert classify(header[156:]).regular
    assert not classify(b"5" + header[157:]).regular
    with pytest.raises(BadHeader):
        octal(b"\xff" * 12, "size")
