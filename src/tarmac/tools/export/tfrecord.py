"""TFRecord files of `tf.train.Example`: integers are int64 lists, everything else bytes lists.

A record is its length, a checksum of that, its bytes and a checksum of those; a checksum is a rotated and masked
CRC-32C, from google-crc32c. The message is encoded here: it is three nested maps of lengths and bytes, and the
libraries that encode it depend on all of protobuf or TensorFlow.
"""

from __future__ import annotations

import struct

from tarmac.errors import EncodeFailed
from tarmac.extras import import_extra
from tarmac.samples.grouping import Sample
from tarmac.tools.export.formats import KEY, RowOptions, SinkFile, Writer, payload
from tarmac.tools.export.values import value_of
from tarmac.tools.output import fields_of

_MAX_BYTES = (1 << 31) - 1
"""Maximum size of a protobuf message."""
_MASK = 0xA282EAD8
_BYTES_LIST, _INT64_LIST = 1, 3


class TfrecordWriter(Writer):
    """Writes a record for each sample."""

    def __init__(self, file: SinkFile, row: RowOptions) -> None:
        self._file, self._row = file, row
        self._crc = import_extra("google_crc32c", "tfrecord", "checksums of TFRecord files").value

    def add(self, sample: Sample) -> int:
        kinds = self._row.kinds
        features: dict[str, int | bytes] = {}
        if self._row.key:
            features[KEY] = sample["__key__"].encode("utf-8", "surrogateescape")
        for field, data in fields_of(sample).items():
            integer = kinds.of(field) == "int"
            features[field] = value_of(kinds, field, data) if integer else bytes(data)
        record = encode_example(features)
        if len(record) > _MAX_BYTES:
            raise EncodeFailed(f"expected at most {_MAX_BYTES} bytes in an Example, got {len(record)}.")
        length = struct.pack("<Q", len(record))
        self._file.write(length + masked_crc(self._crc(length)))
        self._file.write(record)
        self._file.write(masked_crc(self._crc(record)))
        return payload(sample)


def masked_crc(crc: int) -> bytes:
    """Return a CRC-32C as TFRecord files store it: rotated by 15 bits and masked."""
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def encode_example(features: dict[str, int | bytes]) -> bytes:
    """Return the bytes of `Example{features: Features{feature: {name: Feature}}}`, with sorted names."""
    entries = b"".join(
        _field(1, _field(1, name.encode("utf-8", "surrogateescape")) + _field(2, _feature(features[name])))
        for name in sorted(features)
    )
    return _field(1, entries)


def _feature(value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _field(_INT64_LIST, _field(1, _varint(value & 0xFFFFFFFFFFFFFFFF)))
    return _field(_BYTES_LIST, _field(1, value))


def _field(number: int, content: bytes) -> bytes:
    """Encode a message field that holds bytes: a string, a message or packed numbers."""
    return b"%c%b%b" % (number << 3 | 2, _varint(len(content)), content)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
