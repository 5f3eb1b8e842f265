"""`webdataset.writer`: write samples to shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tarmac.codecs import encode_field, find_encoder
from tarmac.codecs.arrays import encode_npy as numpy_dumps
from tarmac.codecs.arrays import encode_npz as numpy_npz_dumps
from tarmac.codecs.arrays import encode_torch as torch_dumps
from tarmac.codecs.basic import cbor_dumps
from tarmac.codecs.basic import msgpack_dumps as mp_dumps
from tarmac.codecs.images import image_encoder
from tarmac.codecs.tenbin import encode_tenbin as tenbin_dumps
from tarmac.compat.webdataset._codec_tables import encoders as default_handlers
from tarmac.compat.webdataset._shard_writers import ShardWriter, TarWriter
from tarmac.compat.webdataset.utils import identity
from tarmac.samples.writer import SampleEncoder

__all__ = [
    "add_handlers",
    "bytestr",
    "cbor_dumps",
    "default_handlers",
    "encode_based_on_extension",
    "encode_based_on_extension1",
    "imageencoder",
    "make_encoder",
    "make_handlers",
    "mp_dumps",
    "numpy_dumps",
    "numpy_npz_dumps",
    "ShardWriter",
    "TarWriter",
    "tenbin_dumps",
    "torch_dumps",
]


def bytestr(data: Any) -> bytes:
    """Return bytes unchanged, and other values as the bytes of their string."""
    return data if isinstance(data, bytes) else str(data).encode("ascii")


def add_handlers(d: dict[str, Any], keys: str | Iterable[str], value: Any) -> None:
    """Set one encoder for several extensions."""
    d.update(dict.fromkeys(keys.split() if isinstance(keys, str) else keys, value))


def make_handlers() -> dict[str, Any]:
    """Return a copy of the table of all encoders."""
    return dict(default_handlers)


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """Encode an image."""
    name = format.upper()
    return image_encoder({"JPG": "JPEG", "TIF": "TIFF", "IMG": "PPM", "IMAGE": "PPM"}.get(name, name))(image)


def encode_based_on_extension1(data: Any, tname: str, handlers: Mapping[str, Any]) -> Any:
    """Encode the value of one field; values such as `__key__` are returned unchanged."""
    return data if tname.startswith("__") else encode_field(tname, data, find_encoder(tname, handlers), "")


def encode_based_on_extension(sample: Mapping[str, Any], handlers: Mapping[str, Any]) -> dict[str, Any]:
    """Encode the fields of a sample by their extensions."""
    return {name: encode_based_on_extension1(value, name, handlers) for name, value in sample.items()}


class _Encoder:
    """Encode samples with a table of encoders; picklable if the table is."""

    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self.handlers = handlers

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return encode_based_on_extension(sample, self.handlers)


def make_encoder(spec: SampleEncoder) -> Callable[[Any], Any]:
    """Return the sample encoder for the `encoder` argument of `TarWriter`."""
    if spec is False or spec is None:
        return identity
    if spec is True:
        return _Encoder(default_handlers)
    if isinstance(spec, Mapping):
        return _Encoder(spec)
    if not callable(spec):
        raise ValueError(f"encoder must be True, False, a dictionary or a function, got {spec!r}")
    return spec
