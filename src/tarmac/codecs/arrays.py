"""Codecs for NumPy arrays and torch tensors: npy, npz, pth.

Nothing here loads pickles. Object arrays and full torch files go to `unsafe`, if the caller allows it.
"""

from __future__ import annotations

import ast
import io
import re
import struct
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tarmac.codecs.handlers import SAFE, DecodeOptions
from tarmac.codecs.registry import Codec, register_codec
from tarmac.codecs.tenbin import plain_array
from tarmac.codecs.unsafe import full_torch_loads, object_array_loads, require_allowed
from tarmac.environment import is_secure
from tarmac.errors import DecodeFailed, DecompressionBomb, EncodeFailed, UnsafeCodec
from tarmac.extras import import_extra
from tarmac.limits import Limits

if TYPE_CHECKING:
    import zipfile

    import numpy as np

    Array = np.ndarray[Any, Any]

_MAGIC = b"\x93NUMPY"
_LENGTH = struct.Struct("<H")
_COMMON_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<>|][biufc]\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n",
    re.DOTALL,
)
_MAX_CACHED, _MAX_CACHED_BYTES = 4096, 512
_MAX_HEADER = 10_000


def encode_npy(value: Any) -> bytes:
    """Encode one array in the NumPy format."""
    import numpy as np

    stream = io.BytesIO()
    np.lib.format.write_array(stream, plain_array(value), allow_pickle=False)
    return stream.getvalue()


def encode_npz(value: Any) -> bytes:
    """Encode a dictionary of arrays, compressed; zip entries carry no time, so the bytes are reproducible."""
    import zipfile

    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise EncodeFailed(f"expected a dictionary of named arrays, got {type(value).__name__}.")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in value.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), encode_npy(array), zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def encode_torch(value: Any) -> bytes:
    """Encode anything that `torch.save` accepts."""
    torch = import_extra("torch", "torch", "pth fields")
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


class _Header(NamedTuple):
    """The header of an npy file; the elements are `size` bytes from `start` on."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int
    size: int


# Headers of small arrays repeat from sample to sample, and parsing one takes far longer than copying the
# elements. So version 1 headers are cached by their bytes.
_headers: dict[bytes, _Header] = {}


def npy_loads(data: bytes, options: DecodeOptions = SAFE) -> Array:
    """Decode one writable array, checking its header against the number of bytes."""
    import numpy as np

    if len(data) < 10:
        raise DecodeFailed(f"npy: {len(data)} bytes are too short for a header.")
    front = data[: 10 + _LENGTH.unpack_from(data, 8)[0]]
    header = _headers.get(front)
    if header is None:
        header = _parse_common_header(front) or _parse_header(data)
        if len(_headers) >= _MAX_CACHED:
            _headers.clear()
        if front[6:8] == b"\x01\x00" and len(front) <= _MAX_CACHED_BYTES:
            _headers[front] = header
    dtype, shape, fortran, start, size = header
    if dtype.hasobject:
        require_allowed("an array of Python objects", options, "tarmac.codecs.unsafe.objects_handler")
        return object_array_loads(data)  # type: ignore[no-any-return]
    if size > len(data) - start:
        raise DecodeFailed(f"npy: {dtype} of shape {shape} takes {size} bytes, got {len(data) - start}.")
    if dtype.subdtype is not None or dtype.itemsize == 0:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    array: Array = np.ndarray(shape, dtype, data, start, None, "F" if fortran else "C")
    return array.copy("K") if fortran else array.copy()


def _parse_common_header(front: bytes) -> _Header | None:
    """Parse the header that `numpy.save` writes for numbers, ten times faster than a full parser."""
    import numpy as np

    match = _COMMON_HEADER.fullmatch(front)
    if match is None:
        return None
    descr, fortran, dimensions = match.groups()
    dtype = np.dtype(descr.decode("ascii"))
    shape = tuple(map(int, dimensions.replace(b",", b" ").split()))
    return _Header(dtype, shape, fortran == b"True", len(front), prod(shape) * dtype.itemsize)


def _parse_header(data: bytes) -> _Header:
    """Parse a header of any version and type."""
    import numpy as np

    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream, _MAX_HEADER)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream, _MAX_HEADER)
    elif version == (3, 0):
        shape, fortran, dtype = _parse_utf8_header(stream)
    else:
        raise DecodeFailed(f"npy: unknown version {version}.")
    if min(shape, default=0) < 0:
        raise DecodeFailed(f"npy: negative dimension in shape {shape}.")
    size = prod(shape) * dtype.itemsize
    if dtype.itemsize == 0 and prod(shape) > len(data):
        raise DecodeFailed(f"npy: {prod(shape)} elements of size 0.")
    return _Header(dtype, tuple(shape), fortran, stream.tell(), size)


def _parse_utf8_header(stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    import numpy as np

    (length,) = struct.unpack("<I", stream.read(4))
    text = stream.read(min(length, _MAX_HEADER + 1))
    if len(text) != length or length > _MAX_HEADER:
        raise DecodeFailed(f"npy: invalid header of {length} bytes.")
    fields = ast.literal_eval(text.decode())
    shape, fortran = fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple) or not all(isinstance(part, int) for part in shape):
        raise DecodeFailed(f"npy: invalid shape {shape!r}.")
    return shape, bool(fortran), np.lib.format.descr_to_dtype(fields["descr"])


def npz_loads(data: bytes, options: DecodeOptions = SAFE) -> dict[str, Any]:
    """Decode a dictionary of arrays; members that are not arrays stay bytes."""
    import zipfile

    result: dict[str, Any] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        _check_zip(members, len(data), options.limits)
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DecodeFailed(f'npz: unsupported compression of member "{member.filename}".')
            with archive.open(member) as stream:
                content = stream.read()
            result[member.filename.removesuffix(".npy")] = (
                npy_loads(content, options) if content.startswith(_MAGIC) else content
            )
    return result


def _check_zip(members: list[zipfile.ZipInfo], size: int, limits: Limits) -> None:
    """Raise if the archive would unpack to too much. zipfile never reads more than the sizes given here."""
    total = sum(member.file_size for member in members)
    if total > limits.member_bytes or (total > limits.expansion_floor and total > limits.expansion * size):
        raise DecompressionBomb(
            f"{size} bytes would unpack to {total}.",
            hint="raise Limits.expansion or Limits.member_bytes if you trust the data.",
        )


def torch_loads(data: bytes, options: DecodeOptions = SAFE) -> Any:
    """Decode tensors and plain containers of them to the CPU; anything else needs `allow_pickle`."""
    import pickle
    import zipfile

    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_zip(archive.infolist(), len(data), options.limits)
    if options.allow_pickle and not is_secure():
        return full_torch_loads(data)
    torch = import_extra("torch", "torch", "pth fields")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        # CVE-2025-32434: in earlier versions weights_only=True can still execute code.
        raise UnsafeCodec(
            f"torch {torch.__version__} cannot load files safely.", hint="install torch 2.6 or later."
        )
    try:
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise UnsafeCodec(
            "the torch file contains more than tensors, or is damaged.",
            hint="for data you trust, allow_pickle=True or tarmac.codecs.unsafe.torch_handler.",
        ) from error


def _array_attributes(data: bytes, limits: Limits) -> dict[str, str]:
    del limits
    header = _parse_common_header(data[: 10 + int.from_bytes(data[8:10], "little")]) or _parse_header(data)
    return {"shape": "x".join(map(str, header.shape)), "dtype": str(header.dtype)}


register_codec(
    Codec(
        "npy",
        npy_loads,
        encode_npy,
        kind="array",
        attributes=("shape", "dtype"),
        read_attributes=_array_attributes,
        takes_options=True,
    )
)
register_codec(Codec("npz", npz_loads, encode_npz, kind="array", takes_options=True))
register_codec(Codec("pth pt", torch_loads, encode_torch, takes_options=True))
