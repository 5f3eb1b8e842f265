"""Decoders that execute code from data: pickles, full torch files, arrays of Python objects.

This is the only file that does so, and only when the caller asks: with `Decoder(..., allow_pickle=True)`, or by
passing one of the handlers below. In secure mode it always raises.
"""

from __future__ import annotations

import io
from typing import Any

from tarmac.codecs.handlers import SAFE, DecodeOptions, handle_extension
from tarmac.codecs.registry import Codec, register_codec
from tarmac.environment import is_secure
from tarmac.errors import UnsafeCodec
from tarmac.extras import import_extra


def require_allowed(what: str, options: DecodeOptions, handler: str) -> None:
    """Raise `UnsafeCodec` unless the caller allowed pickles and secure mode is off."""
    if not options.allow_pickle:
        raise UnsafeCodec(
            f"{what} can run any code when loaded.",
            hint=f"a json, npy or npz field; for data you trust, allow_pickle=True or {handler}.",
        )
    _reject_in_secure_mode(what)


def _reject_in_secure_mode(what: str) -> None:
    if is_secure():
        raise UnsafeCodec(
            f"{what} can run any code when loaded, and secure mode is on.", hint="a json, npy or npz field."
        )


def _decode_pickle(data: bytes, options: DecodeOptions = SAFE) -> Any:
    require_allowed("a pickle", options, "tarmac.codecs.unsafe.pickle_handler")
    return pickle_loads(data)


def _encode_pickle(value: Any) -> bytes:
    import pickle

    return pickle.dumps(value)


def pickle_loads(data: bytes) -> Any:
    """Load a pickle, running any code in it."""
    import pickle

    _reject_in_secure_mode("a pickle")
    return pickle.loads(data)  # noqa: S301 (the caller asked for it)


def full_torch_loads(data: bytes) -> Any:
    """Load everything `torch.save` writes, which includes pickles."""
    _reject_in_secure_mode("a torch file")
    torch = import_extra("torch", "torch", "pth fields")
    return torch.load(io.BytesIO(data), weights_only=False, map_location="cpu")


def object_array_loads(data: bytes) -> Any:
    """Load an npy file whose elements are pickled Python objects."""
    import numpy.lib.format

    _reject_in_secure_mode("an array of Python objects")
    return numpy.lib.format.read_array(io.BytesIO(data), allow_pickle=True)


register_codec(Codec("pyd pkl pickle", _decode_pickle, _encode_pickle, takes_options=True))

pickle_handler = handle_extension("pkl pickle pyd", pickle_loads)
"""Pass this to `decode` to allow pickles: `decode(pickle_handler)`."""
torch_handler = handle_extension("pth pt", full_torch_loads)
"""Pass this to `decode` to allow full torch files."""
objects_handler = handle_extension("npy", object_array_loads)
"""Pass this to `decode` to allow npy files of Python objects."""
