"""Encode values by the extension of their field: `cls` as digits, `json` as JSON, `jpg` as JPEG.

Bytes are stored as they are, and strings as UTF-8, but not in fields such as `jpg` and `npy`: there they are paths
more often than content. A final `.gz` compresses the result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from tarmac.codecs.compression import gzip
from tarmac.codecs.handlers import extension_of
from tarmac.codecs.registry import find_codec, is_binary
from tarmac.errors import CodecError, EncodeFailed, NoCodec, TarmacError

Encoder = Callable[[Any], bytes]


def find_encoder(field: str, encoders: Mapping[str, Encoder] | None = None) -> Encoder:
    """Return the function that encodes values of a field, by the registry or by a table of encoders."""
    name = field.lower()
    compress = name.endswith(".gz")
    extension = extension_of(name.removesuffix(".gz"))
    if encoders is not None:
        encoder = encoders.get(extension)
    else:
        codec = find_codec(extension)
        encoder = None if codec is None else codec.encode

    refuses_text = encoders is None and is_binary(name)

    def encode(value: Any) -> bytes:
        if isinstance(value, bytes):
            data = value
        elif refuses_text and isinstance(value, str | os.PathLike):
            raise EncodeFailed(
                f"expected bytes, got the text {os.fspath(value)[:60]!r}.",
                hint="the bytes of the file: pathlib.Path(path).read_bytes().",
            )
        elif isinstance(value, str):
            data = value.encode("utf-8")
        elif isinstance(value, bytearray | memoryview):
            data = bytes(value)
        elif encoder is None:
            raise NoCodec(
                f'no codec encodes {type(value).__name__} as "{field}".',
                hint="pass bytes, use a known extension, or tarmac.register_codec.",
            )
        else:
            data = encoder(value)
        return gzip(data) if compress else data

    return encode


def encode_field(field: str, value: Any, encode: Encoder, key: str) -> bytes:
    """Encode one value; every error names the sample and the field."""
    try:
        data = encode(value)
        if not isinstance(data, bytes | bytearray | memoryview):
            raise EncodeFailed(f"the encoder returned {type(data).__name__} instead of bytes.")
    except CodecError as error:
        raise _located(error, field, key) from error.__cause__
    except ImportError:
        raise
    except Exception as error:
        raise _located(EncodeFailed(f"{type(error).__name__}: {error}."), field, key) from error
    return bytes(data)


def _located(error: CodecError, field: str, key: str) -> TarmacError:
    error.what = f'field "{field}": {error.what}'
    error.field = field
    return error.at(key=key)
