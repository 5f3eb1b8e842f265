"""Encode and decode fields by extension. Each codec imports its library only when used."""

from tarmac.codecs import arrays, basic, images, media, tenbin, unsafe  # noqa: F401 - they register their codecs
from tarmac.codecs.decode import Decoder
from tarmac.codecs.encode import Encoder, encode_field, find_encoder
from tarmac.codecs.images import imagehandler, imagespecs
from tarmac.codecs.registry import Codec, find_codec, is_binary, kind_of

__all__ = [
    "Codec",
    "Decoder",
    "encode_field",
    "Encoder",
    "find_codec",
    "find_encoder",
    "imagehandler",
    "imagespecs",
    "is_binary",
    "kind_of",
]
