"""tenbin: arrays behind each other, each as a chunk that describes it and a chunk with its elements.

A chunk is the mark `~TenBin~`, its length as int64, and its bytes filled up to a multiple of 64. A
description holds the type (`f4`), a name of up to eight letters (called info), the number of
dimensions and each of them, all in eight bytes, little-endian.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import IO, TYPE_CHECKING, Any

from tarmac.errors import DecodeFailed, DecompressionBomb, EncodeFailed
from tarmac.limits import DEFAULT_LIMITS, MIB

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = [
    "decode_buffer",
    "encode_buffer",
    "encode_tenbin",
    "load",
    "plain_array",
    "read",
    "save",
    "tenbin_loads",
    "write",
]

MAGIC = b"~TenBin~"
ALIGNMENT = 64
MAX_DIMENSIONS = 10
INFO_BYTES = 8
_FRONT = struct.Struct("<8sq")
_TYPES = {f"{kind}{8 * size}": f"{kind[0]}{size}" for kind in ("int", "uint") for size in (1, 2, 4, 8)} | {
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
}
_LONG = {short.encode(): long for long, short in _TYPES.items()}


def plain_array(value: Any) -> Array:
    """Accept arrays, and tensors of other frameworks through the array protocol; no object arrays."""
    import numpy as np

    if hasattr(value, "detach"):  # a torch tensor, wherever it lives
        value = value.detach().cpu().numpy()
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise EncodeFailed(
            "arrays of Python objects would be stored as pickles.", hint="json or pkl instead."
        )
    return array


def encode_tenbin(value: Any) -> bytes:
    """Encode an array or a list of arrays, for a field called `ten`, `tenbin` or `tb`."""
    return encode_buffer(list(value) if isinstance(value, list | tuple) else [value])


def encode_buffer(l: Sequence[Any], infos: Sequence[str] | None = None) -> bytes:  # noqa: E741 (their name)
    """Encode a list of arrays, each with its info if given."""
    if not isinstance(l, list | tuple):
        raise EncodeFailed(f"a list of arrays was expected, got {type(l).__name__}.", hint="[array].")
    return b"".join(_chunks(l, infos))


def _chunks(arrays: Sequence[Any], infos: Sequence[str] | None) -> Iterator[bytes]:
    names = [""] * len(arrays) if infos is None else list(infos)
    if len(names) != len(arrays):
        raise EncodeFailed(f"{len(arrays)} arrays and {len(names)} infos; there must be one for each.")
    for value, name in zip(arrays, names, strict=True):
        array = plain_array(value)
        yield _chunk(_describe(array, name))
        yield _chunk(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())


def _describe(array: Array, info: str) -> bytes:
    short = _TYPES.get(array.dtype.name)
    if short is None:
        raise EncodeFailed(
            f"tenbin has no {array.dtype.name}; it knows {', '.join(sorted(_TYPES))}.",
            hint="array.astype, or a field called npy.",
        )
    if array.ndim >= MAX_DIMENSIONS:
        raise EncodeFailed(f"tenbin holds fewer than {MAX_DIMENSIONS} dimensions, got {array.ndim}.")
    if not info.isascii() or len(info) > INFO_BYTES or "\0" in info:
        raise EncodeFailed(f"an info is up to {INFO_BYTES} ASCII letters, got {info!r}.")
    return struct.pack(f"<8s8s{1 + array.ndim}q", short.encode(), info.encode(), array.ndim, *array.shape)


def _chunk(data: bytes) -> bytes:
    return _FRONT.pack(MAGIC, len(data)) + data + bytes(-len(data) % ALIGNMENT)


def tenbin_loads(data: bytes) -> list[Array]:
    """Decode a field called `ten`, `tenbin` or `tb`."""
    return _arrays(_split(data))[0]


def decode_buffer(buf: bytes | bytearray | memoryview, infos: bool | Sequence[str] = False) -> Any:
    """Decode into a list of arrays.

    With `infos=True` the result is the list and the infos; with a list of infos they must be those.
    """
    return _with_infos(*_arrays(_split(buf)), infos)


def _split(buf: bytes | bytearray | memoryview) -> Iterator[memoryview]:
    """Cut a buffer into its chunks; every length is checked against the bytes that are there."""
    view = memoryview(buf).cast("B")
    offset = 0
    while offset < len(view):
        start = offset + _FRONT.size
        if start > len(view):
            raise DecodeFailed(f"tenbin: {len(view) - offset} bytes at {offset} are too few for a chunk.")
        length = _length(view[offset:start], offset)
        if length > len(view) - start:
            raise DecodeFailed(
                f"tenbin: the chunk at {offset} is {length} bytes long, {len(view) - start} are left."
            )
        yield view[start : start + length]
        offset = start + length + -length % ALIGNMENT


def _length(front: bytes | memoryview, offset: int) -> int:
    magic, length = _FRONT.unpack(front)
    if magic != MAGIC:
        raise DecodeFailed(f"tenbin: no chunk begins at {offset}.")
    if length < 0:
        raise DecodeFailed(f"tenbin: the chunk at {offset} has the length {length}.")
    return int(length)


def _arrays(chunks: Iterable[bytes | memoryview]) -> tuple[list[Array], list[str]]:
    import numpy as np

    arrays, names = [], []
    pairs = iter(chunks)
    for header in pairs:
        dtype, shape, name = _understand(bytes(header))
        data = next(pairs, None)
        if data is None:
            raise DecodeFailed("tenbin: the elements of the last array are missing.")
        if len(data) != prod(shape) * dtype.itemsize:
            raise DecodeFailed(
                f"tenbin: {dtype} of shape {shape} does not take {len(data)} bytes, as the chunk says."
            )
        # The copy makes the array writable and independent of the bytes.
        arrays.append(np.ndarray(shape, dtype, data).copy())
        names.append(name)
    return arrays, names


def _understand(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], str]:
    import numpy as np

    if len(header) < 24 or len(header) % 8:
        raise DecodeFailed(f"tenbin: a description has {len(header)} bytes.")
    short, info, rank, *shape = struct.unpack(f"<8s8s{len(header) // 8 - 2}q", header)
    long = _LONG.get(short.rstrip(b"\0"))
    if long is None:
        raise DecodeFailed(f"tenbin: unknown type {short!r}.")
    if rank != len(shape) or rank >= MAX_DIMENSIONS or min(shape, default=0) < 0:
        raise DecodeFailed(f"tenbin: {rank} dimensions of {shape} make no array.")
    if not info.isascii():
        raise DecodeFailed(f"tenbin: {info!r} is no info.")
    return np.dtype(long).newbyteorder("<"), tuple(shape), info.rstrip(b"\0").decode("ascii")


def _with_infos(arrays: list[Array], names: list[str], infos: bool | Sequence[str] | None) -> Any:
    if infos is None or infos is False:
        return arrays
    if infos is True:
        return arrays, names
    if not isinstance(infos, list | tuple):
        raise DecodeFailed(f"infos is a bool or a list of strings, got {infos!r}.")
    if list(infos) != names:
        raise DecodeFailed(f"tenbin: the infos are {names}, not {list(infos)}.")
    return arrays


def write(stream: IO[bytes], l: Sequence[Any], infos: Sequence[str] | None = None) -> None:  # noqa: E741
    """Write a list of arrays to a stream."""
    for chunk in _chunks(l, infos):
        stream.write(chunk)


def read(stream: IO[bytes], n: int = sys.maxsize, infos: bool | Sequence[str] = False) -> Any:
    """Read up to `n` arrays from a stream, which stands behind them afterwards."""
    return _with_infos(*_arrays(_chunks_of(stream, n)), infos)


def _chunks_of(stream: IO[bytes], arrays: int) -> Iterator[bytes]:
    count = 0
    while count < 2 * arrays:
        front = stream.read(_FRONT.size)
        if not front:
            return
        if len(front) < _FRONT.size:
            raise DecodeFailed("tenbin: the stream ends inside a chunk.")
        length = _length(front, stream.tell() - _FRONT.size if stream.seekable() else 0)
        if length > DEFAULT_LIMITS.member_bytes:
            raise DecompressionBomb(
                f"tenbin: a chunk of {length} bytes; the limit is {DEFAULT_LIMITS.member_bytes}."
            )
        # In pieces, so that memory grows with what is there and not with what is claimed.
        data = bytearray()
        while len(data) < length:
            piece = stream.read(min(length - len(data), MIB))
            if not piece:
                raise DecodeFailed(f"tenbin: the stream ends {length - len(data)} bytes too early.")
            data += piece
        stream.read(-length % ALIGNMENT)
        yield bytes(data)
        count += 1


def save(fname: str, *args: Any, infos: Sequence[str] | None = None, nocheck: bool = False) -> None:
    """Write arrays to a file called `.ten`; `nocheck` allows any name."""
    _check_name(fname, nocheck)
    with open(fname, "wb") as stream:
        write(stream, args, infos=infos)


def load(fname: str, infos: bool | Sequence[str] = False, nocheck: bool = False) -> Any:
    """Read the arrays of a file called `.ten`; `nocheck` allows any name."""
    _check_name(fname, nocheck)
    with open(fname, "rb") as stream:
        return read(stream, infos=infos)


def _check_name(fname: str, nocheck: bool) -> None:
    if not nocheck and not str(fname).endswith(".ten"):
        raise ValueError(f'tenbin files end in ".ten", got {fname!r}; nocheck=True allows any name')
