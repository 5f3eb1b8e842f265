"""Gzip fields: members, padding, checksums, and bombs that are stopped before they fill memory."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.work import calls
from tarmac.codecs import Decoder
from tarmac.codecs.compression import gunzip, gzfilter
from tarmac.codecs.handlers import DecodeOptions
from tarmac.errors import DecodeFailed, DecompressionBomb
from tarmac.limits import Limits

DECODE = Decoder([])
SMALL = DecodeOptions(limits=Limits(expansion_floor=1 << 20))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.integers(0, 20))
def test_gzip_members_and_padding(parts, padding):
    packed = b"".join(map(gzip.compress, parts)) + bytes(padding)
    assert gunzip(packed) == b"".join(parts)
    assert gzip.decompress(packed) == gunzip(packed)


def test_gzip_bombs():
    bomb = gzip.compress(bytes(200 << 20))
    assert len(bomb) < 1 << 20
    with pytest.raises(DecompressionBomb, match=str(len(bomb))):
        gunzip(bomb)
    with pytest.raises(DecompressionBomb):
        DECODE({"txt.gz": bomb})
    half = gzip.compress(bytes(700_000))
    assert len(gunzip(half, SMALL)) == 700_000
    with pytest.raises(DecompressionBomb):
        gunzip(half * 2, SMALL)  # members add up
    with pytest.raises(DecompressionBomb):
        gunzip(gzip.compress(b"abcdef" * 10), DecodeOptions(limits=Limits(member_bytes=59)))
    # a limit given to the decoder reaches the filter
    with pytest.raises(DecompressionBomb):
        Decoder([], limits=Limits(member_bytes=59))({"txt.gz": gzip.compress(b"abcdef" * 10)})


TESTS = Path(__file__).parent.parent
SCRIPT = """
import pathlib, sys
sys.path.insert(0, sys.argv[2])
from harness.memory import peak
import numpy, torch, zipfile
from tarmac.codecs import Decoder
from tarmac.errors import DecompressionBomb
decode = Decoder([])
content = {path.name: path.read_bytes() for path in pathlib.Path(sys.argv[1]).iterdir()}
base = peak()
for name, data in content.items():
    try:
        decode({name: data})
    except DecompressionBomb:
        print("bomb")
print((peak() - base) >> 20)
"""


def test_bombs_use_no_more_memory_than_the_floor(tmp_path):
    zeros = bytes(300 << 20)
    inner = gzip.compress(zeros, 9)
    boxed = io.BytesIO()
    with zipfile.ZipFile(boxed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", zeros)
    bombs = {
        "json.gz": inner,
        "a.txt.gz": gzip.compress(bytes(40 << 20)) * 7,
        "npy.gz": gzip.compress(b"\x93NUMPY" + zeros),
        "jpg.gz": inner,
        "npz": boxed.getvalue(),
        "pth": boxed.getvalue(),
        "unknown.gz": inner,
    }
    for name, data in bombs.items():
        (tmp_path / name).write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(TESTS)],
        capture_output=True,
        text=True,
        check=True,
        timeout=1200,
    )
    assert done.stdout.split()[:-1] == ["bomb"] * len(bombs)
    assert int(done.stdout.split()[-1]) < 128


def test_many_members_take_linear_time():
    packed = gzip.compress(b"x") * 100_000
    assert calls(lambda: gunzip(packed)) < 20 * 100_000
    assert gunzip(packed) == b"x" * 100_000


def test_the_filter_passes_the_inner_key_on():
    inner = gzfilter(".json.gz", gzip.compress(b"[1]"))
    assert (inner.key, inner.data) == (".json", b"[1]")
    assert gzfilter(".json", b"") is None


def test_truncated_data():
    with pytest.raises(DecodeFailed, match=r'field "txt\.gz"'):
        DECODE({"txt.gz": gzip.compress(b"{}")[:-1]})
