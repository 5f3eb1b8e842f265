"""`webdataset.autodecode`: decode fields by extension."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tarmac.codecs import Decoder, imagehandler, imagespecs
from tarmac.codecs.arrays import npy_loads, npz_loads, torch_loads
from tarmac.codecs.basic import cbor_loads, msgpack_loads
from tarmac.codecs.compression import gzfilter
from tarmac.codecs.decode import DecodingError
from tarmac.codecs.handlers import Continue, FieldHandler, handle_extension
from tarmac.codecs.images import IMAGE_EXTENSIONS, ImageHandler
from tarmac.codecs.media import torch_audio, torch_video
from tarmac.codecs.registry import basichandlers
from tarmac.codecs.tenbin import tenbin_loads
from tarmac.codecs.unsafe import pickle_loads as unpickle_loads
from tarmac.compat.webdataset._codec_tables import decoders

__all__ = [
    "basichandlers",
    "call_extension_handler",
    "cbor_loads",
    "Continue",
    "Decoder",
    "decoders",
    "DecodingError",
    "default_decoder",
    "default_post_handlers",
    "default_pre_handlers",
    "gzfilter",
    "handle_extension",
    "IMAGE_EXTENSIONS",
    "ImageHandler",
    "imagehandler",
    "imagespecs",
    "msgpack_loads",
    "npy_loads",
    "npz_loads",
    "pytorch_weights_only",
    "tenbin_loads",
    "torch_audio",
    "torch_loads",
    "torch_video",
    "unpickle_loads",
]

pytorch_weights_only = True
"""torch files are read as tensors only, unless `decode(allow_pickle=True)` is set."""
default_pre_handlers: list[FieldHandler] = [gzfilter]
default_post_handlers: list[FieldHandler] = [basichandlers]
default_decoder: Decoder = Decoder([])


def call_extension_handler(
    key: str, data: bytes, f: Callable[[bytes], Any], extensions: Iterable[str | Iterable[str]]
) -> Any:
    """Return `f(data)` if the key has one of the extensions (strings or lists of parts), else None."""
    names = [name if isinstance(name, str) else ".".join(name) for name in extensions]
    return handle_extension(names, f)(key, data)
