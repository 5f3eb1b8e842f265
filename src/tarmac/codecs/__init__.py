"""Encode and decode fields by extension. Each codec imports its library only when used."""

from tarmac.codecs.arrays import npy_loads, npz_loads, torch_loads
from tarmac.codecs.basic import cbor_loads, json_loads, msgpack_loads
from tarmac.codecs.compression import gzfilter
from tarmac.codecs.decode import Decoder, DecodingError
from tarmac.codecs.encode import Encoder, encode_field, find_encoder
from tarmac.codecs.handlers import Continue, DecodeOptions, handle_extension
from tarmac.codecs.images import IMAGE_EXTENSIONS, ImageHandler, imagehandler, imagespecs
from tarmac.codecs.media import torch_audio, torch_video
from tarmac.codecs.registry import Codec, basichandlers, find_codec, kind_of, register_codec
from tarmac.codecs.tenbin import tenbin_loads

__all__ = [
    "basichandlers",
    "cbor_loads",
    "Codec",
    "Continue",
    "DecodeOptions",
    "Decoder",
    "DecodingError",
    "encode_field",
    "Encoder",
    "find_codec",
    "find_encoder",
    "gzfilter",
    "handle_extension",
    "IMAGE_EXTENSIONS",
    "ImageHandler",
    "imagehandler",
    "imagespecs",
    "json_loads",
    "kind_of",
    "msgpack_loads",
    "npy_loads",
    "npz_loads",
    "register_codec",
    "tenbin_loads",
    "torch_audio",
    "torch_loads",
    "torch_video",
]
