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
    return check_infos(*codec.decode_chunks(codec.split_chunks(buf)), infos)


def check_infos(
    data: list[Any], infos: Sequence[str], required_infos: bool | Sequence[str] | None = None
) -> Any:
    """Return the arrays, and their infos if these are required to be returned. Raise if others are required."""
    if required_infos is None or required_infos is False:
        return data
    if required_infos is True:
        return data, infos
    if not isinstance(required_infos, list | tuple):
        raise DecodeFailed(f"infos: expected a bool or a list of strings, got {required_infos!r}.")
    if list(required_infos) != list(infos):
        raise DecodeFailed(f"tenbin: expected the infos {list(required_infos)}, got {list(infos)}.")
    return data


def write(stream: IO[bytes], l: Sequence[Any], infos: Sequence[str] | None = None) -> None:  # noqa: E741
    """Write a list of arrays to a stream."""
    for chunk in codec.encode_chunks(l, infos):
        stream.write(chunk)


def read(stream: IO[bytes], n: int = sys.maxsize, infos: bool | Sequence[str] = False) -> Any:
    """Read up to `n` arrays from a stream, leaving it positioned after them."""
    return check_infos(*codec.decode_chunks(_read_chunks(stream, n)), infos)


def _read_chunks(stream: IO[bytes], arrays: int) -> Iterator[bytes]:
    count = 0
    while count < 2 * arrays:
        chunk = read_chunk(stream)
        if chunk is None:
            return
        yield chunk
        count += 1


def write_chunk(stream: IO[bytes], buf: Any) -> None:
    """Write one chunk: bytes, or the data of an array."""
    stream.write(codec.encode_chunk(bytes(bytedata(buf))))


def read_chunk(stream: IO[bytes]) -> bytes | None:
    """Read the content of one chunk, or None at the end of the stream."""
    prefix = stream.read(codec.PREFIX.size)
    if not prefix:
        return None
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
    return bytes(data)


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


# -- the parts of the format ----------------------------------------------------------------------------------------

magic_str: str = codec.MAGIC.decode()
magic_bytes: bytes = codec.MAGIC
long_to_short: dict[str, str] = dict(codec.TYPES)
short_to_long: dict[str, str] = {short: long for long, short in codec.TYPES.items()}
_WIDE = frozenset(("float64", "int64", "uint64"))


def str64(s: str) -> int:
    """Return up to eight ASCII characters as a number."""
    return int.from_bytes(s.encode("ascii").ljust(8, b"\0"), "little", signed=True)


def unstr64(i: int) -> str:
    """Invert `str64`."""
    return int(i).to_bytes(8, "little", signed=True).strip(b"\0").decode("ascii")


magic: int = str64(magic_str)


def roundup(n: int, k: int = codec.ALIGNMENT) -> int:
    """Return the smallest multiple of `k` that is at least `n`."""
    return n + -n % k


def bytelen(a: Any) -> int:
    """Return the number of bytes of an array or bytes."""
    if isinstance(a, bytes | bytearray):
        return len(a)
    if not hasattr(a, "nbytes"):
        raise ValueError(f"expected bytes or an array, got {type(a).__name__}")
    return int(a.nbytes)


def bytedata(a: Any) -> Any:
    """Return the memory of an array; bytes are returned unchanged."""
    if isinstance(a, bytes | bytearray | memoryview):
        return a
    if not hasattr(a, "data"):
        raise ValueError(f"expected bytes or an array, got {type(a).__name__}")
    return a.data


def check_acceptable_input_type(data: Sequence[Any], allow64: bool) -> None:
    """Raise if the type of an array cannot be stored; without `allow64`, also if it has 64 bits."""
    for array in data:
        if array.dtype.name not in long_to_short or (not allow64 and array.dtype.name in _WIDE):
            raise EncodeFailed(f"arrays of {array.dtype.name} are not accepted.")


def encode_header(a: Any, info: str = "") -> bytes:
    """Return the content of the header chunk of an array."""
    return codec.encode_header(a, info)


def decode_header(h: bytes) -> tuple[tuple[int, ...], Any, str]:
    """Return the shape, type and info of an array."""
    dtype, shape, info = codec.decode_header(bytes(h))
    return shape, dtype, info


def encode_list(l: Sequence[Any], infos: Sequence[str] | None = None) -> list[memoryview]:  # noqa: E741
    """Return the contents of the chunks of arrays: a header and the data of each."""
    return list(codec.split_chunks(b"".join(codec.encode_chunks(l, infos))))


def decode_list(l: Sequence[bytes | memoryview], infos: bool | Sequence[str] = False) -> Any:  # noqa: E741
    """Invert `encode_list`."""
    return check_infos(*codec.decode_chunks(l), infos)


def encode_chunks(l: Sequence[Any]) -> bytes:  # noqa: E741
    """Join the contents of chunks."""
    return b"".join(codec.encode_chunk(bytes(bytedata(chunk))) for chunk in l)


def decode_chunks(buf: bytes | bytearray | memoryview) -> list[memoryview]:
    """Invert `encode_chunks`."""
    return list(codec.split_chunks(buf))
