"""Codecs for text, integers, JSON, MessagePack and CBOR."""

from __future__ import annotations

import json
from typing import Any

from tarmac.codecs.registry import Codec, register_codec
from tarmac.errors import EncodeFailed
from tarmac.extras import import_extra

_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def _encode_int(value: Any) -> bytes:
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise EncodeFailed(f"expected an integer, got {value!r}.")
    return b"%d" % number


def text_loads(data: bytes) -> str:
    """Decode UTF-8 text."""
    return data.decode()


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise EncodeFailed(f"expected text, got {type(value).__name__}.")
    return value.encode("utf-8")


def json_loads(data: bytes) -> Any:
    """Decode JSON."""
    # Scanning directly is faster than json.loads; it only works for plain UTF-8 without surrounding spaces.
    try:
        text = data.decode()
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except (ValueError, StopIteration):
        pass
    return json.loads(data)


def _encode_json(value: Any) -> bytes:
    # NaN and Infinity are not JSON, and most readers reject them; failing here names the sample.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")


def msgpack_loads(data: bytes) -> Any:
    """Decode MessagePack."""
    return import_extra("msgpack", "msgpack", "msgpack fields").unpackb(data)


def msgpack_dumps(value: Any) -> bytes:
    """Encode as MessagePack."""
    packed: bytes = import_extra("msgpack", "msgpack", "msgpack fields").packb(value)
    return packed


def cbor_loads(data: bytes) -> Any:
    """Decode CBOR."""
    cbor2 = import_extra("cbor2", "cbor", "cbor fields")
    return cbor2.loads(data)


def cbor_dumps(value: Any) -> bytes:
    """Encode as CBOR."""
    packed: bytes = import_extra("cbor2", "cbor", "cbor fields").dumps(value)
    return packed


register_codec(Codec("cls cls2 class count index inx id", int, _encode_int, "int"))
register_codec(Codec("txt text transcript", text_loads, _encode_text, "text"))
# These may have any character encoding, so decoding leaves them as bytes, as the webdataset library does.
register_codec(Codec("html htm", None, _encode_text, "text"))
register_codec(Codec("caption md xml csv tsv yaml yml srt vtt", kind="text"))
register_codec(Codec("json jsn", json_loads, _encode_json, "json"))
register_codec(Codec("mp msg msgpack", msgpack_loads, msgpack_dumps))
register_codec(Codec("cbor", cbor_loads, cbor_dumps))
