"""`webdataset.autodecode`: decoders by extension."""

from __future__ import annotations

from tarmac.codecs import (
    IMAGE_EXTENSIONS,
    Continue,
    Decoder,
    DecodingError,
    ImageHandler,
    basichandlers,
    cbor_loads,
    gzfilter,
    handle_extension,
    imagehandler,
    imagespecs,
    msgpack_loads,
    npy_loads,
    npz_loads,
    torch_audio,
    torch_loads,
    torch_video,
)
from tarmac.codecs.tenbin import tenbin_loads
from tarmac.codecs.unsafe import pickle_loads as unpickle_loads
from tarmac.compat.helpers import (
    call_extension_handler,
    default_decoder,
    default_post_handlers,
    default_pre_handlers,
)
from tarmac.compat.webdataset.codec_tables import decoders

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
"""Files of torch hold tensors only, unless `decode(allow_pickle=True)` asks for more."""
