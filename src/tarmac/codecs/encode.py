"""Choose the encoder of a field by its extension: `cls` becomes digits, `json` JSON, `jpg` a JPEG.

Bytes are stored as they are and strings as UTF-8, whatever the field is called; `.gz` behind an
extension compresses the result.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from tarmac.codecs.arrays import encode_npy, encode_npz, encode_torch
from tarmac.codecs.images import image_encoder
from tarmac.codecs.tenbin import encode_tenbin
from tarmac.errors import CodecError, EncodeFailed, NoCodec, TarmacError
from tarmac.extras import import_extra

__all__ = ["Encoder", "encode_field", "encoders", "find_encoder"]

Encoder = Callable[[Any], bytes]


def _encode_number(value: Any) -> bytes:
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise EncodeFailed(f"a whole number was expected, got {value!r}.")
    return b"%d" % number


def _encode_text(value: Any) -> bytes:
    raise EncodeFailed(f"text was expected, got {type(value).__name__}.")


def _encode_json(value: Any) -> bytes:
    # NaN and Infinity are not JSON, and most readers refuse them; failing here names the sample.
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")


def _encode_pickle(value: Any) -> bytes:
    import pickle

    return pickle.dumps(value)


def _encode_msgpack(value: Any) -> bytes:
    packed: bytes = import_extra("msgpack", "msgpack", "msgpack fields").packb(value)
    return packed


def _encode_cbor(value: Any) -> bytes:
    packed: bytes = import_extra("cbor2", "cbor", "cbor fields").dumps(value)
    return packed


def _table() -> dict[str, Encoder]:
    groups: dict[str, Encoder] = {
        "cls cls2 class count index inx id": _encode_number,
        "txt text transcript html htm": _encode_text,
        "json jsn": _encode_json,
        "npy": encode_npy,
        "npz": encode_npz,
        "ten tenbin tb": encode_tenbin,
        "pth pt": encode_torch,
        "pyd pkl pickle": _encode_pickle,
        "mp msg msgpack": _encode_msgpack,
        "cbor": _encode_cbor,
        "jpg jpeg img image": image_encoder("JPEG"),
        "ppm": image_encoder("PPM"),
        "pgm": image_encoder("PPM", mode="L"),
        "pbm": image_encoder("PPM", mode="1"),
        "png": image_encoder("PNG"),
        "webp": image_encoder("WEBP"),
        "bmp": image_encoder("BMP"),
        "tiff tif": image_encoder("TIFF"),
    }
    return {name: encoder for names, encoder in groups.items() for name in names.split()}


encoders: Mapping[str, Encoder] = _table()
"""The encoder of each extension."""


def find_encoder(field: str, table: Mapping[str, Encoder] = encoders) -> Encoder:
    """Return the function that turns a value of this field into bytes."""
    name = field.lower()
    compress = name.endswith(".gz")
    extension = name.removesuffix(".gz").rpartition(".")[2]
    encoder = table.get(extension)

    def encode(value: Any) -> bytes:
        if isinstance(value, bytes):
            data = value
        elif isinstance(value, str):
            data = value.encode("utf-8")
        elif isinstance(value, bytearray | memoryview):
            data = bytes(value)
        elif encoder is None:
            raise NoCodec(
                f'nothing encodes {type(value).__name__} as "{field}".',
                hint="pass bytes, a field name with a known extension, or encoder={extension: function}.",
            )
        else:
            data = encoder(value)
        return _gzip(data) if compress else data

    return encode


def _gzip(data: bytes) -> bytes:
    """Compress without a time stamp, so that the same value gives the same bytes."""
    packer = zlib.compressobj(6, zlib.DEFLATED, wbits=31)
    return packer.compress(data) + packer.flush()


def encode_field(field: str, value: Any, encode: Encoder, key: str) -> bytes:
    """Encode one value; whatever goes wrong names the sample and the field."""
    try:
        data = encode(value)
        if not isinstance(data, bytes | bytearray | memoryview):
            raise EncodeFailed(f"this became {type(data).__name__}, not bytes.")
    except CodecError as error:
        raise _placed(error, field, key) from error.__cause__
    except ImportError:
        raise
    except Exception as error:
        raise _placed(EncodeFailed(f"{type(error).__name__}: {error}."), field, key) from error
    return bytes(data)


def _placed(error: CodecError, field: str, key: str) -> TarmacError:
    error.what = f'field "{field}": {error.what}'
    error.field = field
    return error.at(key=key)
