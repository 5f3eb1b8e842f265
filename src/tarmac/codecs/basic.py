"""Decoders for text, numbers, JSON and other serialisers; the table of all decoders by extension."""

from __future__ import annotations

import json
import re
import zlib
from functools import partial
from typing import Any

from tarmac.codecs.arrays import npy_loads, npz_loads, torch_loads
from tarmac.codecs.handlers import SAFE, FieldHandler, Function, Settings, extension_of
from tarmac.codecs.tenbin import tenbin_loads
from tarmac.codecs.unsafe import pickle_field
from tarmac.errors import DecodeFailed, DecompressionBomb
from tarmac.extras import import_extra

__all__ = [
    "basichandlers",
    "cbor_loads",
    "decoders",
    "gunzip",
    "gzfilter",
    "json_loads",
    "msgpack_loads",
    "text_loads",
]

WINDOW = 1 << 16
PIECE = 1 << 20
_ZEROS = re.compile(rb"\0*")
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def text_loads(data: bytes) -> str:
    """UTF-8 text."""
    return data.decode()


def json_loads(data: bytes) -> Any:
    """JSON; the direct way for plain UTF-8 without spaces around it, the careful one for the rest."""
    try:
        text = data.decode()
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except (ValueError, StopIteration):
        pass
    return json.loads(data)


def msgpack_loads(data: bytes) -> Any:
    """MessagePack."""
    return import_extra("msgpack", "msgpack", "msgpack fields").unpackb(data)


def cbor_loads(data: bytes) -> Any:
    """CBOR."""
    cbor2 = import_extra("cbor2", "cbor", "cbor fields")
    return cbor2.loads(data)


def _table() -> dict[str, Function]:
    groups: dict[str, Function] = {
        "cls cls2 class count index inx id": int,
        "txt text transcript": text_loads,
        "json jsn": json_loads,
        "npy": npy_loads,
        "npz": npz_loads,
        "ten tenbin tb": tenbin_loads,
        "pth pt": torch_loads,
        "pyd pkl pickle": pickle_field,
        "mp msg msgpack": msgpack_loads,
        "cbor": cbor_loads,
    }
    return {name: function for names, function in groups.items() for name in names.split()}


decoders: dict[str, Function] = _table()
"""The decoder of each extension. An entry added here holds for every `Decoder` that uses `basichandlers`, as
long as it has not met a field of that name."""

_WITH_SETTINGS: frozenset[Any] = frozenset((npy_loads, npz_loads, torch_loads, pickle_field))


class BasicHandlers(FieldHandler):
    """Decodes what the table `decoders` knows."""

    def find(self, key: str, settings: Settings) -> Function | None:
        function = decoders.get(extension_of(key))
        if function in _WITH_SETTINGS and settings != SAFE:
            return partial(function, settings=settings)  # type: ignore[arg-type,call-arg,misc]
        return function

    def __reduce__(self) -> str:
        return "basichandlers"


basichandlers = BasicHandlers()
"""The handler that comes last: text, numbers, JSON, arrays and so on by extension."""


class GzipFilter(FieldHandler):
    """Takes the `.gz` off a key and its bytes."""

    def find(self, key: str, settings: Settings) -> Function | None:
        if not key.lower().endswith(".gz"):
            return None
        return gunzip if settings == SAFE else partial(gunzip, settings=settings)

    def inner(self, key: str) -> str | None:
        return key[:-3]

    def __reduce__(self) -> str:
        return "gzfilter"


gzfilter = GzipFilter()
"""The handler that comes first: decompresses `.gz` and hands on what is inside."""


def gunzip(data: bytes, settings: Settings = SAFE) -> bytes:
    """Decompress all members of a gzip field, checking their sums, up to what the limits allow."""
    limits = settings.limits
    most = min(max(limits.expansion_floor, limits.expansion * len(data)), limits.member_bytes)
    view, start, total = memoryview(data), 0, 0
    parts: list[bytes] = []
    # The input goes in piece by piece, because zlib copies what follows a member: with thousands of
    # members in one field that would take time with the square of the size.
    while start < len(data) or not parts:
        unpacker = zlib.decompressobj(wbits=31)
        pending: bytes | memoryview = b""
        while not unpacker.eof:
            if not pending:
                pending = view[start : start + WINDOW]
                start += len(pending)
            if not pending:
                raise DecodeFailed("the gzip data ends too early.")
            # Output comes in pieces too: zlib would hold a large one twice while it grows.
            part = unpacker.decompress(pending, PIECE)
            pending = unpacker.unconsumed_tail
            parts.append(part)
            total += len(part)
            if total > most:
                parts.clear()  # the error keeps this frame, and must not keep the bomb
                raise DecompressionBomb(
                    f"{len(data)} bytes expand to more than {most}.",
                    hint="raise Limits.expansion or Limits.member_bytes if the data is trusted.",
                )
        start -= len(unpacker.unused_data)
        padding = _ZEROS.match(data, start)
        start = start if padding is None else padding.end()
    return parts[0] if len(parts) == 1 else b"".join(parts)
