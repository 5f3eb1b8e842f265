"""Decoders that execute what the data says: pickles, full torch files, arrays of Python objects.

This is the only file where that happens, and only when the caller's code asks: with
`Decoder(..., allow_pickle=True)`, or by passing one of the handlers below. In secure mode never.
"""

from __future__ import annotations

import io
from typing import Any

from tarmac.codecs.handlers import SAFE, Settings, handle_extension
from tarmac.errors import UnsafeCodec
from tarmac.extras import import_extra
from tarmac.storage.security import is_secure

__all__ = [
    "allow",
    "full_torch_loads",
    "object_array_loads",
    "objects_handler",
    "pickle_field",
    "pickle_handler",
    "pickle_loads",
    "torch_handler",
]


def allow(what: str, settings: Settings, handler: str) -> None:
    """Raise `UnsafeCodec` unless the caller allowed pickles and secure mode is off."""
    if not settings.allow_pickle:
        raise UnsafeCodec(
            f"{what} can run any code when loaded.",
            hint=f"json, npy or safetensors; for data you trust, allow_pickle=True or {handler}.",
        )
    _refuse_in_secure_mode(what)


def _refuse_in_secure_mode(what: str) -> None:
    if is_secure():
        raise UnsafeCodec(
            f"{what} can run any code when loaded, and secure mode is on.", hint="json, npy or safetensors."
        )


def pickle_field(data: bytes, settings: Settings = SAFE) -> Any:
    """Load a pickle if the settings allow it: what `pkl`, `pickle` and `pyd` stand for."""
    allow("a pickle", settings, "tarmac.codecs.unsafe.pickle_handler")
    return pickle_loads(data)


def pickle_loads(data: bytes) -> Any:
    """Load a pickle, running whatever it says."""
    import pickle

    _refuse_in_secure_mode("a pickle")
    return pickle.loads(data)  # noqa: S301 (asked for by the caller's code)


def full_torch_loads(data: bytes) -> Any:
    """Load everything `torch.save` writes, which includes pickles."""
    _refuse_in_secure_mode("a torch file")
    torch = import_extra("torch", "torch", "pth fields")
    return torch.load(io.BytesIO(data), weights_only=False, map_location="cpu")


def object_array_loads(data: bytes) -> Any:
    """Load an npy file whose elements are pickled Python objects."""
    import numpy.lib.format

    _refuse_in_secure_mode("an array of Python objects")
    return numpy.lib.format.read_array(io.BytesIO(data), allow_pickle=True)


pickle_handler = handle_extension("pkl pickle pyd", pickle_loads)
"""Passing this to `decode` allows pickles: `decode(pickle_handler)`."""
torch_handler = handle_extension("pth pt", full_torch_loads)
"""Passing this to `decode` allows full torch files."""
objects_handler = handle_extension("npy", object_array_loads)
"""Passing this to `decode` allows npy files of Python objects."""
