"""TFRecord files, compared with what TensorFlow 2.21 writes."""

from __future__ import annotations

import struct

import google_crc32c

from tarmac.tools.export.tfrecord import encode_example, masked_crc
from tools.export.samples import odd, run, write
from tools.export.tfrecords import messages, records

GOLDEN = bytes.fromhex(
    "3b000000000000001a23ac5c0a390a100a075f5f6b65795f5f12050a030a01610a150a03636c73120e1a0c0a0afbffffffffff"
    "ffffff010a0e0a0374787412070a050a0368c3a96f17973402010000000000007ed79b6a0aff010a110a075f5f6b65795f5f12"
    "060a040a026bff0a110a03636c73120a1a080a068080808080200ad6010a0374787412ce010acb010ac801"
    + "78" * 200
    + "46dc7d9d"
)


def test_known_checksums():
    assert google_crc32c.value(b"123456789") == 0xE3069283  # RFC 3720
    assert google_crc32c.value(bytes(32)) == 0x8A9136AA
    assert masked_crc(0) == bytes.fromhex("d8ea82a2")
    assert masked_crc(0xE3069283) == struct.pack("<I", (0x2507C60D + 0xA282EAD8) & 0xFFFFFFFF)


def test_the_same_bytes_as_tensorflow(tmp_path):
    files = [
        ("a.cls", b"-5"),
        ("a.txt", "hé".encode()),
        ("k\udcff.cls", b"%d" % (1 << 40)),
        ("k\udcff.txt", b"x" * 200),
    ]
    run(odd(tmp_path, files), "tfrecord", tmp_path / "x.tfrecord")
    assert (tmp_path / "x.tfrecord").read_bytes() == GOLDEN


def test_every_kind_of_field(tmp_path):
    run(write(tmp_path, [2]), "tfrecord", tmp_path / "x.tfrecord")
    first, second = records(tmp_path / "x.tfrecord")
    assert list(first) == sorted(first)
    assert first["__key__"] == (1, b"k/000")
    assert second["cls"] == (3, b"\1")
    assert second["json"][1].startswith(b'{\n "n": 1')
    run(str(tmp_path / "s0.tar"), "tfrecord", tmp_path / "y.tfrecord", key=False)
    assert "__key__" not in records(tmp_path / "y.tfrecord")[0]


def test_sizes_of_every_length():
    for size in (0, 1, 127, 128, 16_383, 16_384, 3_000_000):
        ((_, features),) = messages(encode_example({"x": b"v" * size}))
        ((_, entry),) = messages(features)
        assert entry.endswith(b"v" * min(size, 1000))
        assert dict(messages(next(iter(messages(dict(messages(entry))[2])))[1])) == {1: b"v" * size}
