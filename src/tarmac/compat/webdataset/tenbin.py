"""`webdataset.tenbin`: encode arrays as bytes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

from tarmac.codecs import tenbin as codec
from tarmac.errors import DecodeFailed, DecompressionBomb, EncodeFailed
from tarmac.limits import DEFAULT_LIMITS, MIB


def encode_buffer(l: Sequence[Any], infos: Sequence[str] | None = None) -> bytes:  # noqa: E741 (the name in webdataset)
    """Encode a list of arrays, each with its info if given."""
    if not isinstance(l, list | tuple):
        raise EncodeFailed(f"expected a list of arrays, got {type(l).__name__}.", hint="pass [array].")
    return b"".join(codec.encode_chunks(l, infos))


def decode_buffer(buf: bytes | bytearray | memoryview, infos: bool | Sequence[str] = False) -> Any:
    """Decode a list of arrays.

    With `infos=True`, return the list and the infos. With a list of infos, raise unless they are equal.
    """
    return _check_infos(*codec.decode_chunks(codec.split_chunks(buf)), infos)


def _check_infos(arrays: list[Any], names: list[str], infos: bool | Sequence[str] | None) -> Any:
    if infos is None or infos is False:
        return arrays
    if infos is True:
        return arrays, names
    if not isinstance(infos, list | tuple):
        raise DecodeFailed(f"infos: expected a bool or a list of strings, got {infos!r}.")
    if list(infos) != names:
        raise DecodeFailed(f"tenbin: expected the infos {list(infos)}, got {names}.")
    return arrays


def write(stream: IO[bytes], l: Sequence[Any], infos: Sequence[str] | None = None) -> None:  # noqa: E741
    """Write a list of arrays to a stream."""
    for chunk in codec.encode_chunks(l, infos):
        stream.write(chunk)


def read(stream: IO[bytes], n: int = sys.maxsize, infos: bool | Sequence[str] = False) -> Any:
    """Read up to `n` arrays from a stream, leaving it positioned after them."""
    return _check_infos(*codec.decode_chunks(_read_chunks(stream, n)), infos)


def _read_chunks(stream: IO[bytes], arrays: int) -> Iterator[bytes]:
    count = 0
    while count < 2 * arrays:
        prefix = stream.read(codec.PREFIX.size)
        if not prefix:
            return
        if len(prefix) < codec.PREFIX.size:
            raise DecodeFailed("tenbin: the stream is truncated.")
        length = codec.chunk_length(prefix, stream.tell() - codec.PREFIX.size if stream.seekable() else 0)
        if length > DEFAULT_LIMITS.member_bytes:
            raise DecompressionBomb(
                f"tenbin: a chunk of {length} bytes exceeds the limit of {DEFAULT_LIMITS.member_bytes}."
            )
        # Read in parts, so that memory grows with the data and not with the claimed length.
        data = bytearray()
        while len(data) < length:
            part = stream.read(min(length - len(data), MIB))
            if not part:
                raise DecodeFailed(f"tenbin: the stream is {length - len(data)} bytes too short.")
            data += part
        stream.read(-length % codec.ALIGNMENT)
        yield bytes(data)
        count += 1


def save(fname: str, *args: Any, infos: Sequence[str] | None = None, nocheck: bool = False) -> None:
    """Write arrays to a `.ten` file; `nocheck` allows any name."""
    _check_name(fname, nocheck)
    with open(fname, "wb") as stream:
        write(stream, args, infos=infos)


def load(fname: str, infos: bool | Sequence[str] = False, nocheck: bool = False) -> Any:
    """Read the arrays of a `.ten` file; `nocheck` allows any name."""
    _check_name(fname, nocheck)
    with open(fname, "rb") as stream:
        return read(stream, infos=infos)


def _check_name(fname: str, nocheck: bool) -> None:
    if not nocheck and not str(fname).endswith(".ten"):
        raise ValueError(f"expected a name ending in .ten, got {fname!r}; nocheck=True allows any name")
