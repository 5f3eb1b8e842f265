"""NumPy arrays and torch tensors to bytes: npy, npz, tenbin, pth."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

from tarmac.errors import EncodeFailed

if TYPE_CHECKING:
    import numpy as np

__all__ = ["encode_npy", "encode_npz", "encode_tenbin", "encode_torch"]

TENBIN_MAGIC = b"~TenBin~"
TENBIN_ALIGNMENT = 64
TENBIN_MAX_DIMENSIONS = 10
_TENBIN_TYPES = {
    f"{kind}{8 * size}": f"{kind[0]}{size}" for kind in ("int", "uint") for size in (1, 2, 4, 8)
} | {
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
}


def _array(value: Any) -> np.ndarray[Any, Any]:
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


def encode_npy(value: Any) -> bytes:
    """One array in NumPy's own format."""
    import numpy as np

    stream = io.BytesIO()
    np.lib.format.write_array(stream, _array(value), allow_pickle=False)
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
    try:
        import torch
    except ImportError:
        raise ImportError('pth fields need an extra: pip install "tarmac[torch]"') from None
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def encode_tenbin(value: Any) -> bytes:
    """An array or a list of arrays as tenbin: for each a header chunk and a data chunk, 64-byte aligned."""
    arrays = value if isinstance(value, list | tuple) else [value]
    return b"".join(_chunk(part) for item in arrays for part in _header_and_data(_array(item)))


def _header_and_data(array: np.ndarray[Any, Any]) -> tuple[bytes, bytes]:
    short = _TENBIN_TYPES.get(array.dtype.name)
    if short is None:
        raise EncodeFailed(f"tenbin has no {array.dtype.name}; it knows {', '.join(sorted(_TENBIN_TYPES))}.")
    if array.ndim >= TENBIN_MAX_DIMENSIONS:
        raise EncodeFailed(f"tenbin holds fewer than {TENBIN_MAX_DIMENSIONS} dimensions, got {array.ndim}.")
    header = struct.pack(f"<8s8s{1 + array.ndim}q", short.encode(), b"", array.ndim, *array.shape)
    return header, array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _chunk(data: bytes) -> bytes:
    return TENBIN_MAGIC + struct.pack("<q", len(data)) + data + bytes(-len(data) % TENBIN_ALIGNMENT)
