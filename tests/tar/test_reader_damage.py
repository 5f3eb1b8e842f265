"""Truncate at every byte and flip every header bit of every format: no damage is silent."""

from __future__ import annotations

import random

import pytest

from harness import rounds
from harness.damage import Damaged, bit_flips, cuts, expect_no_silence, random_flips
from harness.shards import COMPRESSED_KINDS, KINDS, PLAIN_KINDS, header_offsets, plain, reseal
from tarmac.errors import ArchiveError, BadChecksum, NotATar, Truncated
from tarmac.tar import read_members


class Trickle:
    """A stream that returns at most 700 bytes per call, so that every boundary is crossed."""

    def __init__(self, data: bytes, piece: int = 700) -> None:
        self._data, self._piece = data, piece

    def read(self, size: int, /) -> bytes:
        size = min(size, self._piece)
        data, self._data = self._data[:size], self._data[size:]
        return data


def whole(data: bytes):
    return read_members(data)


def stream(data: bytes):
    return read_members(Trickle(data))


def skipping(data: bytes):
    """Read names, offsets and sizes without payload."""
    return read_members(Trickle(data), payload=False)


def selecting(data: bytes):
    return read_members(data, wanted=lambda name: name.endswith(b"txt"))


WAYS = {"whole": whole, "stream": stream, "skipping": skipping, "selecting": selecting}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_truncation_at_every_byte(kind, way):
    good = KINDS[kind]()
    tally = expect_no_silence(WAYS[way], good, cuts(good))
    assert tally.silent == 0
    assert tally.total == len(good)
    if kind in PLAIN_KINDS:
        # Only truncation after the first zero block keeps every member.
        assert tally.intact == 512


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_every_bit_of_every_header(kind):
    good = PLAIN_KINDS[kind]()
    regions = [(start, start + 512) for start in header_offsets(good)]
    tally = expect_no_silence(whole, good, bit_flips(good, regions))
    assert tally.silent == 0
    assert tally.total == len(regions) * 4096
    # Bits of the padding around the digits of the checksum have no meaning.
    assert tally.intact <= len(regions) * 16


@pytest.mark.parametrize("kind", ["gnu long names", "pax long names", "pax with float times"])
def test_flips_in_extended_headers_are_never_silent_about_members(kind):
    """The payload of an extended header has no checksum: a name may change, but no member may vanish."""
    good = PLAIN_KINDS[kind]()
    starts = [start for start in header_offsets(good) if good[start + 156 : start + 157] in b"Lx"]
    regions = [(start + 512, start + 512 + int(good[start + 124 : start + 135], 8)) for start in starts]
    expected = list(whole(good))

    def same_payloads(_case: Damaged, members: list) -> bool:
        return [member[1:] for member in members] == [member[1:] for member in expected][: len(members)]

    expect_no_silence(whole, good, bit_flips(good, regions), accept=same_payloads)


@pytest.mark.parametrize("kind", COMPRESSED_KINDS)
def test_flips_in_compressed_shards(kind):
    good = COMPRESSED_KINDS[kind]()
    flips = bit_flips(good, [(0, len(good))], step=1 if kind != "xz" else 2)
    tally = expect_no_silence(whole, good, flips, early=False)
    assert tally.silent == 0
    # A few header bits have no meaning, such as the time stamp and system in gz.
    assert tally.intact < 120


@pytest.mark.parametrize("kind", ["gz", "zst", "xz", "bz2"])
def test_garbage_after_a_compressed_shard(kind):
    good = COMPRESSED_KINDS[kind]()
    with pytest.raises(ArchiveError):
        list(whole(good + b"garbage behind the end"))
    with pytest.raises(ArchiveError):
        list(stream(good + b"x"))
    assert list(whole(good + bytes(100))) == list(whole(good))


def test_payload_flips_change_the_payload_and_nothing_else():
    good = plain()
    rng = random.Random(7)
    expected = list(whole(good))
    headers = header_offsets(good)
    for case in random_flips(good, rng, rounds(500)):
        position = int(case.how.split("byte ")[1].split()[0])
        if any(start <= position < start + 512 for start in headers) or position >= len(good) - 1024:
            continue
        members = list(whole(case.data))
        assert [member[:3] for member in members] == [member[:3] for member in expected]


@pytest.mark.parametrize("index", range(6))
def test_bad_checksum_at_every_member_names_its_offset(index):
    data = bytearray(plain())
    start = header_offsets(bytes(data))[index]
    data[start + 3] ^= 0x40
    with pytest.raises(BadChecksum) as caught:
        list(read_members(bytes(data), url="x.tar"))
    assert caught.value.offset == start
    assert f"x.tar @ {start:#010x}" in str(caught.value)
    assert "tarmac check" in str(caught.value)


@pytest.mark.parametrize("kind", PLAIN_KINDS)
def test_truncation_is_reported_with_its_offset(kind):
    good = PLAIN_KINDS[kind]()
    for size in range(512, len(good) - 1024, 97):
        for way in (whole, stream):
            with pytest.raises(Truncated) as caught:
                list(way(good[:size]))
            assert abs(caught.value.offset - size) <= 512


def test_two_flips_that_cancel_are_not_detected():
    """The checksum of tar is weak: FORMAT.md promises detection of such damage only with an index."""
    data = bytearray(plain())
    data[0] += 1
    data[1] -= 1
    assert next(iter(whole(bytes(data))))[0] != b"s0.cls"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html>" + b" " * 1000, "web page"),
        (b"PK\x03\x04" + bytes(1000), "zip"),
        (b"\x89PNG" + bytes(2000), "begins with"),
        (random.Random(1).randbytes(4096), "begins with"),
        (b"short", "Truncated"),
    ],
)
def test_files_that_are_not_archives(data, words):
    with pytest.raises(ArchiveError) as caught:
        list(whole(data))
    assert isinstance(caught.value, NotATar | Truncated)
    assert words in str(caught.value) or words == type(caught.value).__name__


def test_invalid_headers_with_valid_checksums():
    """An invalid size is rejected even with a valid checksum."""
    data = bytearray(plain())
    data[124:136] = b"-0000000001\0"
    reseal(data, 0)
    with pytest.raises(ArchiveError, match="octal"):
        list(whole(bytes(data)))
