"""Codec for tenbin, a sequence of arrays, each stored as a header chunk and a data chunk.

A chunk is the magic `~TenBin~`, its length as int64, and its bytes padded to a multiple of 64. A header
contains the type (`f4`), a name of up to eight ASCII characters (called info), the number of dimensions and
each dimension, in eight bytes each, little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tarmac.codecs.registry import Codec, register_codec
from tarmac.errors import DecodeFailed, EncodeFailed

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MAGIC = b"~TenBin~"
ALIGNMENT = 64
MAX_DIMENSIONS = 10
INFO_BYTES = 8
PREFIX = struct.Struct("<8sq")
TYPES = {f"{name}{8 * size}": f"{name[0]}{size}" for name in ("int", "uint") for size in (1, 2, 4, 8)} | {
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
}
_LONG = {short.encode(): long for long, short in TYPES.items()}


def plain_array(value: Any) -> Array:
    """Return an array, or a tensor of any framework, as a NumPy array; raise if it holds Python objects."""
    import numpy as np

    if hasattr(value, "detach"):  # a torch tensor, on any device
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise EncodeFailed(
            "arrays of Python objects would be stored as pickles.", hint="use a json or pkl field."
        )
    return array


def encode_tenbin(value: Any) -> bytes:
    """Encode an array or a list of arrays for a `ten`, `tenbin` or `tb` field."""
    return b"".join(encode_chunks(value if isinstance(value, list | tuple) else [value]))


def encode_chunks(arrays: Sequence[Any], infos: Sequence[str] | None = None) -> Iterator[bytes]:
    """Yield the chunks of a list of arrays, each with its info if given."""
    names = [""] * len(arrays) if infos is None else list(infos)
    if len(names) != len(arrays):
        raise EncodeFailed(f"expected one info per array, got {len(names)} for {len(arrays)}.")
    for value, name in zip(arrays, names, strict=True):
        array = plain_array(value)
        yield encode_chunk(encode_header(array, name))
        yield encode_chunk(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def encode_header(array: Array, info: str) -> bytes:
    """Return the content of the header chunk of an array."""
    short = TYPES.get(array.dtype.name)
    if short is None:
        raise EncodeFailed(
            f"tenbin does not support {array.dtype.name}: expected one of {', '.join(sorted(TYPES))}.",
            hint="convert with array.astype, or use an npy field.",
        )
    if array.ndim >= MAX_DIMENSIONS:
        raise EncodeFailed(f"expected fewer than {MAX_DIMENSIONS} dimensions, got {array.ndim}.")
    if not info.isascii() or len(info) > INFO_BYTES or "\0" in info:
        raise EncodeFailed(f"invalid info: expected up to {INFO_BYTES} ASCII characters, got {info!r}.")
    return struct.pack(f"<8s8s{1 + array.ndim}q", short.encode(), info.encode(), array.ndim, *array.shape)


def encode_chunk(data: bytes) -> bytes:
    """Return a chunk with this content."""
    return PREFIX.pack(MAGIC, len(data)) + data + bytes(-len(data) % ALIGNMENT)


def tenbin_loads(data: bytes) -> list[Array]:
    """Decode a `ten`, `tenbin` or `tb` field."""
    return decode_chunks(split_chunks(data))[0]


def split_chunks(buf: bytes | bytearray | memoryview) -> Iterator[memoryview]:
    """Yield the chunks of a buffer, checking every length against the remaining bytes."""
    view = memoryview(buf).cast("B")
    offset = 0
    while offset < len(view):
        start = offset + PREFIX.size
        if start > len(view):
            raise DecodeFailed(f"tenbin: {len(view) - offset} bytes at {offset} are too short for a chunk.")
        length = chunk_length(view[offset:start], offset)
        if length > len(view) - start:
            raise DecodeFailed(
                f"tenbin: the chunk at {offset} has {length} bytes, but {len(view) - start} remain."
            )
        yield view[start : start + length]
        offset = start + length + -length % ALIGNMENT


def chunk_length(prefix: bytes | memoryview, offset: int) -> int:
    """Return the length of the chunk that begins with this prefix."""
    magic, length = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise DecodeFailed(f"tenbin: no chunk at {offset}.")
    if length < 0:
        raise DecodeFailed(f"tenbin: the chunk at {offset} has the invalid length {length}.")
    return int(length)


def decode_chunks(chunks: Iterable[bytes | memoryview]) -> tuple[list[Array], list[str]]:
    """Return the arrays and their infos."""
    import numpy as np

    arrays, names = [], []
    pairs = iter(chunks)
    for header in pairs:
        dtype, shape, name = decode_header(bytes(header))
        data = next(pairs, None)
        if data is None:
            raise DecodeFailed("tenbin: the last array has no data.")
        if len(data) != prod(shape) * dtype.itemsize:
            raise DecodeFailed(f"tenbin: {dtype} of shape {shape} does not take {len(data)} bytes.")
        # The copy makes the array writable and independent of the bytes.
        arrays.append(np.ndarray(shape, dtype, data).copy())
        names.append(name)
    return arrays, names


def decode_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], str]:
    """Return the type, shape and info of an array."""
    import numpy as np

    if len(header) < 24 or len(header) % 8:
        raise DecodeFailed(f"tenbin: invalid header of {len(header)} bytes.")
    short, info, rank, *shape = struct.unpack(f"<8s8s{len(header) // 8 - 2}q", header)
    long = _LONG.get(short.rstrip(b"\0"))
    if long is None:
        raise DecodeFailed(f"tenbin: unknown type {short!r}.")
    if rank != len(shape) or rank >= MAX_DIMENSIONS or min(shape, default=0) < 0:
        raise DecodeFailed(f"tenbin: invalid shape {shape} with {rank} dimensions.")
    if not info.isascii():
        raise DecodeFailed(f"tenbin: invalid info {info!r}.")
    return np.dtype(long).newbyteorder("<"), tuple(shape), info.rstrip(b"\0").decode("ascii")


register_codec(Codec("ten tenbin tb", tenbin_loads, encode_tenbin, "array"))
