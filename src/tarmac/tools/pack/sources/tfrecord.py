"""TFRecord files of `tf.train.Example`: each record is a sample, and each feature a column.

A feature with one value is that value, otherwise a list. Checksums are verified. The message is decoded here, as
`export` encodes it there: libraries that do it depend on all of protobuf or TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from tarmac.errors import DecodeFailed, UrlError
from tarmac.extras import import_extra
from tarmac.tools.export.tfrecord import masked_crc
from tarmac.tools.pack.sources.table import register_table
from tarmac.tools.tables import Position, Row, Table, names_in

_LENGTH = struct.Struct("<Q4s")
_END = 4
"""Bytes of the checksum after a record."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_KEYS = ("__key__", "key")


class Tfrecord(Table):
    """Records. A position is the number of the record, its offset and its length in bytes."""

    extensions = (".tfrecord", ".tfrecords")
    row_name = "record"

    @cached_property
    def _crc(self) -> Callable[[bytes], int]:
        crc: Callable[[bytes], int] = import_extra(
            "google_crc32c", "tfrecord", "checksums of TFRecord files"
        ).value
        return crc

    @cached_property
    def names(self) -> list[str]:
        names = names_in(self.rows())
        if not names:
            raise UrlError("the file has no records.", url=self.url)
        return names

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[tuple[Position, Row]]:
        with self.local.opened(self.url) as fd:
            end, offset, number = os.fstat(fd).st_size, 0, 1
            while offset < end:
                head = os.pread(fd, _LENGTH.size, offset)
                if len(head) < _LENGTH.size or masked_crc(self._crc(head[:8])) != head[8:]:
                    raise self._damaged(number)
                position = number, offset + _LENGTH.size, _LENGTH.unpack(head)[0]
                yield position, self._read(fd, position)
                offset, number = position[1] + position[2] + _END, number + 1

    @contextlib.contextmanager
    def reader(
        self, positions: Sequence[Position], columns: Sequence[str]
    ) -> Iterator[Callable[[Position], Row]]:
        with self.local.opened(self.url) as fd:
            yield lambda position: self._read(fd, position)

    def _read(self, fd: int, position: Position) -> Row:
        number, offset, length = position
        if length > os.fstat(fd).st_size - offset - _END:
            raise self._damaged(number)
        data = os.pread(fd, length + _END, offset)
        record = data[:length]
        if masked_crc(self._crc(record)) != data[length:]:
            raise self._damaged(number)
        try:
            row = decode_example(record)
        except (IndexError, ValueError, struct.error):
            raise DecodeFailed(f"record {number} is not a tf.train.Example.", url=self.url) from None
        key = next((name for name in _KEYS if name in row), None)
        if key is not None and isinstance(row[key], bytes):
            row[key] = row[key].decode("utf-8", "surrogateescape")
        return row

    def _damaged(self, number: int) -> DecodeFailed:
        return DecodeFailed(f"record {number} is damaged or not a TFRecord.", url=self.url)


def decode_example(data: bytes) -> dict[str, Any]:
    """Return the features of an Example; one value is not a list."""
    features: dict[str, Any] = {}
    for content in _contents(data, 1):
        for entry in _contents(content, 1):
            name = b"".join(_contents(entry, 1)).decode("utf-8", "surrogateescape")
            values = [value for feature in _contents(entry, 2) for value in _values(feature)]
            if values:
                features[name] = values[0] if len(values) == 1 else values
    return features


def _values(feature: bytes) -> Iterator[Any]:
    for number, _, content in _message(feature):
        for _, wire, value in _message(content):
            if number == _BYTES_LIST:
                yield value
            elif number == _FLOAT_LIST:
                yield from struct.unpack(f"<{len(value) // 4}f", value)
            elif number == _INT64_LIST:
                yield from map(_signed, _varints(value) if wire == _BYTES else [value])


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _contents(data: bytes, wanted: int) -> list[bytes]:
    return [content for number, _, content in _message(data) if number == wanted]


def _message(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield the number, the wire type and the content of each field of a message."""
    offset = 0
    while offset < len(data):
        tag, offset = _varint(data, offset)
        wire = tag & 7
        if wire == _VARINT:
            value, offset = _varint(data, offset)
            yield tag >> 3, wire, value
            continue
        if wire == _BYTES:
            size, offset = _varint(data, offset)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire, 0)
        content = data[offset : offset + size]
        if (not size and wire != _BYTES) or len(content) < size:
            raise ValueError("not a message")
        yield tag >> 3, wire, content
        offset += size


def _varints(data: bytes) -> Iterator[int]:
    offset = 0
    while offset < len(data):
        number, offset = _varint(data, offset)
        yield number


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[offset]
        number |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return number, offset
        if shift > 63:
            raise ValueError("not a number")


register_table("tfrecord", Tfrecord)
