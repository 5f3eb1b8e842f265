"""Read TFRecord files by their specification."""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c

from tarmac.tools.export.tfrecord import masked_crc


def messages(data):
    """Yield the fields of a message: number, and bytes or an integer."""
    offset = 0

    def varint():
        nonlocal offset
        value = shift = 0
        while True:
            byte = data[offset]
            offset += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while offset < len(data):
        tag = varint()
        if tag & 7 == 2:
            size = varint()
            yield tag >> 3, data[offset : offset + size]
            offset += size
        else:
            yield tag >> 3, varint()


def records(path):
    """Read a TFRecord file by its specification: check the checksums, and decode the Examples."""
    data, offset, examples = Path(path).read_bytes(), 0, []
    while offset < len(data):
        (size,) = struct.unpack_from("<Q", data, offset)
        assert data[offset + 8 : offset + 12] == masked_crc(google_crc32c.value(data[offset : offset + 8]))
        record = data[offset + 12 : offset + 12 + size]
        assert data[offset + 12 + size : offset + 16 + size] == masked_crc(google_crc32c.value(record))
        offset += 16 + size
        ((_, features),) = messages(record)
        example = {}
        for _, entry in messages(features):
            (_, name), (_, feature) = messages(entry)
            ((kind, values),) = messages(feature)
            ((_, value),) = messages(values)
            example[name.decode()] = (kind, value)
        examples.append(example)
    return examples
