"""Field to bytes and bytes to field by extension; each codec's library is imported only when used."""

from tarmac.codecs import tenbin
from tarmac.codecs.arrays import npy_loads, npz_loads, torch_loads
from tarmac.codecs.basic import (
    basichandlers,
    cbor_loads,
    decoders,
    gzfilter,
    json_loads,
    msgpack_loads,
)
from tarmac.codecs.decode import Decoder, DecodingError
from tarmac.codecs.encode import Encoder, encode_field, encoders, find_encoder
from tarmac.codecs.handlers import Continue, handle_extension
from tarmac.codecs.images import IMAGE_EXTENSIONS, ImageHandler, imagehandler, imagespecs
from tarmac.codecs.media import torch_audio, torch_video

__all__ = [
    "basichandlers",
    "cbor_loads",
    "Continue",
    "Decoder",
    "decoders",
    "DecodingError",
    "encode_field",
    "Encoder",
    "encoders",
    "find_encoder",
    "gzfilter",
    "handle_extension",
    "IMAGE_EXTENSIONS",
    "ImageHandler",
    "imagehandler",
    "imagespecs",
    "json_loads",
    "msgpack_loads",
    "npy_loads",
    "npz_loads",
    "tenbin",
    "torch_audio",
    "torch_loads",
    "torch_video",
]
