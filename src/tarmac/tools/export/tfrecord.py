"""TFRecord files of `tf.train.Example`: whole numbers are int64 lists, everything else bytes lists.

A record is its length, a checksum of that, its bytes and a checksum of those; a checksum is a CRC-32C, turned
and shifted. The checksums come from google-crc32c. The message is written here: it is three nested maps of
lengths and bytes, and the libraries that know it bring all of protobuf or TensorFlow with them.
"""

from __future__ import annotations

import struct

from tarmac.errors import EncodeFailed
from tarmac.runtime.extras import import_extra
from tarmac.samples.grouping import Sample
from tarmac.tools.export.form import KEY, Shape, SinkFile, Writer, payload
from tarmac.tools.export.values import value_of

__all__ = ["encode_example", "masked_crc", "open_writer"]

_LARGEST = (1 << 31) - 1
"""Bytes of a message of protobuf."""
_MASK = 0xA282EAD8
_BYTES_LIST, _INT64_LIST = 1, 3


def open_writer(name: str, file: SinkFile, shape: Shape) -> Writer:
    """Begin a TFRecord file."""
    del name
    return _Records(file, shape)


class _Records(Writer):
    def __init__(self, file: SinkFile, shape: Shape) -> None:
        self._file, self._shape = file, shape
        self._crc = import_extra("google_crc32c", "tfrecord", "checksums of TFRecord files").value

    def add(self, sample: Sample) -> int:
        kinds = self._shape.kinds
        features: dict[str, int | bytes] = {}
        if self._shape.key:
            features[KEY] = sample["__key__"].encode("utf-8", "surrogateescape")
        for field, data in sample.items():
            if field[:2] != "__":
                whole = kinds.of(field) == "int"
                features[field] = value_of(kinds, field, data) if whole else bytes(data)
        record = encode_example(features)
        if len(record) > _LARGEST:
            raise EncodeFailed(f"a sample of {len(record)} bytes; an Example takes {_LARGEST}.")
        length = struct.pack("<Q", len(record))
        self._file.write(length + masked_crc(self._crc(length)))
        self._file.write(record)
        self._file.write(masked_crc(self._crc(record)))
        return payload(sample)


def masked_crc(crc: int) -> bytes:
    """A CRC-32C as TFRecord files have it: turned by 15 bits and shifted."""
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def encode_example(features: dict[str, int | bytes]) -> bytes:
    """The bytes of `Example{features: Features{feature: {name: Feature}}}`, names in order."""
    entries = b"".join(
        _part(1, _part(1, name.encode("utf-8", "surrogateescape")) + _part(2, _feature(features[name])))
        for name in sorted(features)
    )
    return _part(1, entries)


def _feature(value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _part(_INT64_LIST, _part(1, _varint(value & 0xFFFFFFFFFFFFFFFF)))
    return _part(_BYTES_LIST, _part(1, value))


def _part(number: int, content: bytes) -> bytes:
    """A field of a message that holds bytes: a string, a message or packed numbers."""
    return b"%c%b%b" % (number << 3 | 2, _varint(len(content)), content)


def _varint(number: int) -> bytes:
    """Seven bits at a time, the lowest first."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
