"""`webdataset.autodecode`: decode fields by extension."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import replace
from typing import Any, Literal

from tarmac.codecs import Decoder as Decoder
from tarmac.codecs import imagehandler as imagehandler
from tarmac.codecs import imagespecs as imagespecs
from tarmac.codecs.arrays import npy_loads as npy_loads
from tarmac.codecs.arrays import npz_loads as npz_loads
from tarmac.codecs.arrays import torch_loads as torch_loads
from tarmac.codecs.basic import cbor_loads as cbor_loads
from tarmac.codecs.basic import msgpack_loads as msgpack_loads
from tarmac.codecs.compression import gzfilter as gzfilter
from tarmac.codecs.decode import DecodingError as DecodingError
from tarmac.codecs.handlers import Continue as Continue
from tarmac.codecs.handlers import FieldHandler
from tarmac.codecs.handlers import handle_extension as handle_extension
from tarmac.codecs.images import IMAGE_EXTENSIONS as IMAGE_EXTENSIONS
from tarmac.codecs.images import ImageHandler as ImageHandler
from tarmac.codecs.media import torch_audio as torch_audio
from tarmac.codecs.media import torch_video as torch_video
from tarmac.codecs.registry import Codec, find_codec, register_codec, registered_codecs
from tarmac.codecs.registry import basichandlers as basichandlers
from tarmac.codecs.tenbin import tenbin_loads as tenbin_loads
from tarmac.codecs.unsafe import pickle_loads

unpickle_loads = pickle_loads
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


class _CodecTable(MutableMapping[str, Any]):
    """The registry as a dictionary from extension to decoder or encoder; setting an item registers a codec."""

    def __init__(self, attribute: Literal["decode", "encode"]) -> None:
        self._attribute = attribute

    def __getitem__(self, extension: str) -> Any:
        codec = find_codec(extension)
        if codec is None or extension not in codec.names or getattr(codec, self._attribute) is None:
            raise KeyError(extension)
        return getattr(codec, self._attribute)

    def __setitem__(self, extension: str, function: Any) -> None:
        codec = replace(find_codec(extension) or Codec[Any](extension), extensions=extension)
        if self._attribute == "decode":
            codec = replace(codec, decode=function, takes_options=False)
        else:
            codec = replace(codec, encode=function)
        register_codec(codec, replace=True)

    def __delitem__(self, extension: str) -> None:
        _ = self[extension]  # raises KeyError
        self[extension] = None

    def __iter__(self) -> Iterator[str]:
        for extension, codec in registered_codecs():
            if getattr(codec, self._attribute) is not None:
                yield extension

    def __len__(self) -> int:
        return sum(1 for _ in self)


decoders = _CodecTable("decode")
encoders = _CodecTable("encode")
