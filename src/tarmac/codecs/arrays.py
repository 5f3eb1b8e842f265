"""NumPy arrays and torch tensors to bytes and back: npy, npz, pth.

Nothing here loads pickles: object arrays and full torch files go to `unsafe`, if the caller allows it.
"""

from __future__ import annotations

import ast
import io
import re
import struct
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tarmac.codecs.handlers import SAFE, Settings
from tarmac.codecs.tenbin import plain_array
from tarmac.codecs.unsafe import allow, full_torch_loads, object_array_loads
from tarmac.errors import DecodeFailed, DecompressionBomb, EncodeFailed, UnsafeCodec
from tarmac.extras import import_extra
from tarmac.limits import Limits
from tarmac.storage.security import is_secure

if TYPE_CHECKING:
    import zipfile

    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = [
    "any_header",
    "encode_npy",
    "encode_npz",
    "encode_torch",
    "Header",
    "npy_loads",
    "npz_loads",
    "torch_loads",
    "usual_header",
]

_MAGIC = b"\x93NUMPY"
_LENGTH = struct.Struct("<H")
_USUAL = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<>|][biufc]\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n",
    re.DOTALL,
)
_REMEMBERED, _REMEMBERED_BYTES = 4096, 512
_LONGEST_HEADER = 10_000


def encode_npy(value: Any) -> bytes:
    """One array in NumPy's own format."""
    import numpy as np

    stream = io.BytesIO()
    np.lib.format.write_array(stream, plain_array(value), allow_pickle=False)
    return stream.getvalue()


def encode_npz(value: Any) -> bytes:
    """A dictionary of arrays, compressed; the zip entries carry no time, so the bytes are reproducible."""
    import zipfile

    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise EncodeFailed(f"a dictionary of named arrays was expected, got {type(value).__name__}.")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in value.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), encode_npy(array), zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def encode_torch(value: Any) -> bytes:
    """Whatever `torch.save` takes."""
    torch = import_extra("torch", "torch", "pth fields")
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


class Header(NamedTuple):
    """What the header of an npy file says, where the elements begin, and how many bytes they take."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int
    size: int


# Headers of small arrays repeat from sample to sample, and reading one takes far longer than copying
# the elements, so they are remembered by their bytes. Only whole version 1 headers are.
_headers: dict[bytes, Header] = {}


def npy_loads(data: bytes, settings: Settings = SAFE) -> Array:
    """Decode one array, writable. What its header claims is compared with the bytes that are there."""
    import numpy as np

    if len(data) < 10:
        raise DecodeFailed(f"npy: {len(data)} bytes are too few for a header.")
    front = data[: 10 + _LENGTH.unpack_from(data, 8)[0]]
    header = _headers.get(front)
    if header is None:
        header = usual_header(front) or any_header(data)
        if len(_headers) >= _REMEMBERED:
            _headers.clear()
        if front[6:8] == b"\x01\x00" and len(front) <= _REMEMBERED_BYTES:
            _headers[front] = header
    dtype, shape, fortran, start, size = header
    if dtype.hasobject:
        allow("an array of Python objects", settings, "tarmac.codecs.unsafe.objects_handler")
        return object_array_loads(data)  # type: ignore[no-any-return]
    if size > len(data) - start:
        raise DecodeFailed(
            f"npy: {dtype} of shape {shape} takes {size} bytes, {len(data) - start} are there."
        )
    if dtype.subdtype is not None or dtype.itemsize == 0:
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    array: Array = np.ndarray(shape, dtype, data, start, None, "F" if fortran else "C")
    return array.copy("K") if fortran else array.copy()


def usual_header(front: bytes) -> Header | None:
    """Understand what `numpy.save` writes for numbers, in a tenth of the time a full parser takes."""
    import numpy as np

    found = _USUAL.fullmatch(front)
    if found is None:
        return None
    descr, fortran, dimensions = found.groups()
    dtype = np.dtype(descr.decode("ascii"))
    shape = tuple(map(int, dimensions.replace(b",", b" ").split()))
    return Header(dtype, shape, fortran == b"True", len(front), prod(shape) * dtype.itemsize)


def any_header(data: bytes) -> Header:
    """Understand every version and type, through NumPy where it has a function for it."""
    import numpy as np

    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream, _LONGEST_HEADER)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream, _LONGEST_HEADER)
    elif version == (3, 0):
        shape, fortran, dtype = _header_in_utf8(stream)
    else:
        raise DecodeFailed(f"npy: version {version} is unknown.")
    if min(shape, default=0) < 0:
        raise DecodeFailed(f"npy: the shape {shape} has a negative part.")
    size = prod(shape) * dtype.itemsize
    if dtype.itemsize == 0 and prod(shape) > len(data):
        raise DecodeFailed(f"npy: {prod(shape)} elements without size.")
    return Header(dtype, tuple(shape), fortran, stream.tell(), size)


def _header_in_utf8(stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    import numpy as np

    (length,) = struct.unpack("<I", stream.read(4))
    text = stream.read(min(length, _LONGEST_HEADER + 1))
    if len(text) != length or length > _LONGEST_HEADER:
        raise DecodeFailed(f"npy: a header of {length} bytes.")
    fields = ast.literal_eval(text.decode())
    shape, fortran = fields["shape"], fields["fortran_order"]
    if not isinstance(shape, tuple) or not all(isinstance(part, int) for part in shape):
        raise DecodeFailed(f"npy: {shape!r} is no shape.")
    return shape, bool(fortran), np.lib.format.descr_to_dtype(fields["descr"])


def npz_loads(data: bytes, settings: Settings = SAFE) -> dict[str, Any]:
    """Decode a dictionary of arrays; members that are no arrays stay bytes."""
    import zipfile

    result: dict[str, Any] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        _check_zip(members, len(data), settings.limits)
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DecodeFailed(f'npz: member "{member.filename}" is not compressed as NumPy does.')
            with archive.open(member) as stream:
                content = stream.read()
            result[member.filename.removesuffix(".npy")] = (
                npy_loads(content, settings) if content.startswith(_MAGIC) else content
            )
    return result


def _check_zip(members: list[zipfile.ZipInfo], size: int, limits: Limits) -> None:
    """Refuse archives that would unpack to too much. A member cannot give more than its size here says."""
    total = sum(member.file_size for member in members)
    if total > limits.member_bytes or (total > limits.expansion_floor and total > limits.expansion * size):
        raise DecompressionBomb(
            f"{size} bytes claim to unpack to {total}.",
            hint="raise Limits.expansion or Limits.member_bytes if the data is trusted.",
        )


def torch_loads(data: bytes, settings: Settings = SAFE) -> Any:
    """Decode tensors and plain containers of them, to the CPU; anything else needs `allow_pickle`."""
    import pickle
    import zipfile

    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check_zip(archive.infolist(), len(data), settings.limits)
    if settings.allow_pickle and not is_secure():
        return full_torch_loads(data)
    torch = import_extra("torch", "torch", "pth fields")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        # CVE-2025-32434: there, loading weights only can still be made to execute code.
        raise UnsafeCodec(f"torch {torch.__version__} cannot load safely.", hint="torch 2.6 or later.")
    try:
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise UnsafeCodec(
            "the torch file holds more than tensors, or is damaged.",
            hint="for data you trust, allow_pickle=True or tarmac.codecs.unsafe.torch_handler.",
        ) from error
