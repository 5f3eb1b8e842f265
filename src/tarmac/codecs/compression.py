"""Fields compressed with gzip: `json.gz` is decompressed and then decoded as `json`."""

from __future__ import annotations

import re
import zlib
from functools import partial

from tarmac.codecs.handlers import SAFE, DecodeFunction, DecodeOptions, FieldHandler
from tarmac.errors import DecodeFailed, DecompressionBomb

_INPUT_CHUNK = 1 << 16
_OUTPUT_CHUNK = 1 << 20
_ZEROS = re.compile(rb"\0*")


class GzipFilter(FieldHandler):
    """Decompresses fields whose name ends in `.gz`."""

    def find(self, key: str, options: DecodeOptions) -> DecodeFunction | None:
        if not key.lower().endswith(".gz"):
            return None
        return gunzip if options == SAFE else partial(gunzip, options=options)

    def inner(self, key: str) -> str | None:
        return key[:-3]

    def __reduce__(self) -> str:
        return "gzfilter"


gzfilter = GzipFilter()
"""The default first handler of a `Decoder`; the name is that of the webdataset library."""


def gzip(data: bytes) -> bytes:
    """Compress without a time stamp, so that equal values give equal bytes."""
    packer = zlib.compressobj(6, zlib.DEFLATED, wbits=31)
    return packer.compress(data) + packer.flush()


def gunzip(data: bytes, options: DecodeOptions = SAFE) -> bytes:
    """Decompress all members of a gzip field, verifying their checksums, up to the limits."""
    limits = options.limits
    max_bytes = min(max(limits.expansion_floor, limits.expansion * len(data)), limits.member_bytes)
    view, start, total = memoryview(data), 0, 0
    parts: list[bytes] = []
    # Feed the input in chunks: zlib copies what follows a member, so a field of thousands of members would
    # take quadratic time.
    while start < len(data) or not parts:
        unpacker = zlib.decompressobj(wbits=31)
        pending: bytes | memoryview = b""
        while not unpacker.eof:
            if not pending:
                pending = view[start : start + _INPUT_CHUNK]
                start += len(pending)
            if not pending:
                raise DecodeFailed("the gzip data is truncated.")
            # Limit the output, too: zlib holds a large one twice while it grows.
            part = unpacker.decompress(pending, _OUTPUT_CHUNK)
            pending = unpacker.unconsumed_tail
            parts.append(part)
            total += len(part)
            if total > max_bytes:
                parts.clear()  # the traceback keeps this frame and must not keep the data
                raise DecompressionBomb(
                    f"{len(data)} bytes expand to more than {max_bytes}.",
                    hint="raise Limits.expansion or Limits.member_bytes if you trust the data.",
                )
        start -= len(unpacker.unused_data)
        padding = _ZEROS.match(data, start)
        start = start if padding is None else padding.end()
    return parts[0] if len(parts) == 1 else b"".join(parts)
