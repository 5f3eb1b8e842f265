"""Detect with digests what no reader of tar can see: missing members, zeros, changed bytes."""

from __future__ import annotations

import os

import pytest

import tarmac
from harness.shards import header_offsets, plain
from tarmac.errors import TarmacError

FILES = [(f"s{i}.{field}", bytes([65 + i]) * 600) for i in range(6) for field in ("cls", "txt")]
GOOD = plain(FILES)
STARTS = header_offsets(GOOD)
END = len(GOOD) - 1024


def removed(first, last):
    return GOOD[: STARTS[first]] + GOOD[STARTS[last] if last < len(STARTS) else END :]


def zeroed(first):
    return GOOD[: STARTS[first]] + bytes(len(GOOD) - STARTS[first])


def replaced():
    data = bytearray(GOOD)
    data[STARTS[4] + 512] ^= 1
    return bytes(data)


BLIND = {
    "first sample removed": removed(0, 2),
    "one field removed": removed(3, 4),
    "two samples removed": removed(4, 8),
    "last sample removed": removed(10, 12),
    "tail of zeros": zeroed(6),
    "zeros within a sample": zeroed(7),
    "a changed byte": replaced(),
}


def intact(manifest):
    return tarmac.check(manifest, digests=True).ok


@pytest.mark.parametrize("case", BLIND)
@pytest.mark.parametrize("created", ["index", "ShardWriter"])
def test_an_index_with_digests_detects_what_the_archive_cannot(case, created, tmp_path):
    shard, manifest = tmp_path / "x-0.tar", tmp_path / "all.json"
    shard.write_bytes(GOOD)
    if created == "index":
        tarmac.index(shard, manifest, digests=True)
    else:
        samples = list(tarmac.read(shard))
        with tarmac.ShardWriter(str(tmp_path / "x-%d.tar"), index=manifest, encoder=False) as writer:
            for sample in samples:
                writer.write(sample)
        assert len(shard.read_bytes()) == len(GOOD)
    assert intact(manifest)
    shard.write_bytes(BLIND[case])
    assert len(list(tarmac.read(shard))) <= 6  # a complete archive, to a reader of tar
    assert not intact(manifest)
    with pytest.raises(TarmacError):
        list(tarmac.Dataset(str(manifest), verify=True))


def test_a_tail_of_zeros_of_the_same_size_and_time_is_detected_by_digests(tmp_path):
    """Even where neither the size nor the time gives it away."""
    shard, manifest = tmp_path / "x.tar", tmp_path / "all.json"
    shard.write_bytes(GOOD)
    tarmac.index(shard, manifest, digests=True)
    stamp = os.stat(shard)
    for first in (2, 7, 11):
        shard.write_bytes(zeroed(first))
        os.utime(shard, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        assert not intact(manifest)
        with pytest.raises(TarmacError):
            list(tarmac.Dataset(str(manifest), verify=True))
