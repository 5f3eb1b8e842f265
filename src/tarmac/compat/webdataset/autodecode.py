"""`webdataset.autodecode`: decode fields by extension."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import replace
from functools import partial as bind
from typing import Any, Literal

from tarmac import codecs, environment
from tarmac.codecs import arrays
from tarmac.codecs import imagehandler as imagehandler
from tarmac.codecs import imagespecs as imagespecs
from tarmac.codecs.arrays import npy_loads as npy_loads
from tarmac.codecs.arrays import npz_loads as npz_loads
from tarmac.codecs.basic import cbor_loads as cbor_loads
from tarmac.codecs.basic import msgpack_loads as msgpack_loads
from tarmac.codecs.compression import gzfilter as gzfilter
from tarmac.codecs.decode import DecodingError as DecodingError
from tarmac.codecs.handlers import SAFE, DecodeFunction, DecodeOptions, FieldHandler, Handler
from tarmac.codecs.handlers import Continue as Continue
from tarmac.codecs.handlers import handle_extension as handle_extension
from tarmac.codecs.images import IMAGE_EXTENSIONS as IMAGE_EXTENSIONS
from tarmac.codecs.images import ImageHandler as ImageHandler
from tarmac.codecs.media import torch_audio as torch_audio
from tarmac.codecs.media import torch_video as torch_video
from tarmac.codecs.registry import Codec, find_codec, register_codec, registered_codecs
from tarmac.codecs.tenbin import tenbin_loads as tenbin_loads
from tarmac.codecs.unsafe import pickle_loads
from tarmac.compat.webdataset import utils as utils
from tarmac.compat.webdataset._security import PICKLE, TORCH, check_data
from tarmac.limits import DEFAULT_LIMITS, Limits

pytorch_weights_only = True
"""torch files are read as tensors only, unless `decode(allow_pickle=True)` or TARMAC_ALLOW_PICKLE is set."""

_undecoded: dict[str, Codec[Any] | None] = {
    name: find_codec(name) for name in ("class", "count", "msgpack", "pt", "tenbin")
}
"""Codecs of tarmac for fields that the webdataset library leaves as bytes."""
_rejected = [(find_codec("pth"), TORCH), (find_codec("pyd"), PICKLE)]
"""Codecs of tarmac that the webdataset library rejects in secure mode, with its message."""


def torch_loads(data: bytes, options: DecodeOptions = SAFE) -> Any:
    """Decode tensors and plain containers of them to the CPU. Raise in secure mode."""
    check_data(TORCH)
    return arrays.torch_loads(data, options)


def unpickle_loads(data: bytes) -> Any:
    """Load a pickle, running any code in it. Raise in secure mode."""
    check_data(PICKLE)
    return pickle_loads(data)


def _decode_if_allowed(decode: DecodeFunction, message: str, data: bytes) -> Any:
    check_data(message)
    return decode(data)


class LibraryCodecs(FieldHandler):
    """Decodes fields with the registered codecs, except for those that the webdataset library leaves as bytes.

    These are some extensions for which the program has not registered a codec, and extensions in upper case.
    """

    def find(self, key: str, options: DecodeOptions) -> DecodeFunction | None:
        extension = key.rpartition(".")[2]
        codec = find_codec(extension)
        if codec is None or extension not in codec.names or _undecoded.get(extension) is codec:
            return None
        decode = codec.decoder(options)
        message = next((message for rejected, message in _rejected if codec is rejected), None)
        return decode if decode is None or message is None else bind(_decode_if_allowed, decode, message)

    def __reduce__(self) -> str:
        return "basichandlers"


basichandlers = LibraryCodecs()
default_pre_handlers: list[Handler] = [gzfilter]
default_post_handlers: list[Handler] = [basichandlers]


class Decoder(codecs.Decoder):
    """`tarmac.codecs.Decoder` with the default handlers of this module, which the program may change.

    Its errors have the attribute `sample`.
    """

    def __init__(
        self,
        handlers: Iterable[Handler],
        pre: Iterable[Handler] | None = None,
        post: Iterable[Handler] | None = None,
        only: str | Iterable[str] | None = None,
        partial: bool = False,
        *,
        allow_pickle: bool = False,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(
            handlers,
            default_pre_handlers if pre is None else pre,
            default_post_handlers if post is None else post,
            only,
            partial,
            allow_pickle=allow_pickle or environment.allows_pickle(),
            limits=limits,
        )

    def decode(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return a new sample with decoded fields."""
        try:
            return super().decode(sample)
        except DecodingError as error:
            error.sample = sample
            raise


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
        if codec is None or extension not in codec.names or not self._has(extension, codec):
            raise KeyError(extension)
        return getattr(codec, self._attribute)

    def _has(self, extension: str, codec: Codec[Any]) -> bool:
        left_as_bytes = self._attribute == "decode" and _undecoded.get(extension) is codec
        return not left_as_bytes and getattr(codec, self._attribute) is not None

    def __setitem__(self, extension: str, function: Any) -> None:
        previous = find_codec(extension)
        codec = replace(previous or Codec[Any](extension), extensions=extension)
        if self._attribute == "decode":
            codec = replace(codec, decode=function, takes_options=False)
        else:
            codec = replace(codec, encode=function)
            if previous is not None and _undecoded.get(extension) is previous:
                _undecoded[extension] = codec
        register_codec(codec, replace=True)

    def __delitem__(self, extension: str) -> None:
        _ = self[extension]  # raises KeyError
        self[extension] = None

    def __iter__(self) -> Iterator[str]:
        for extension, codec in registered_codecs():
            if self._has(extension, codec):
                yield extension

    def __len__(self) -> int:
        return sum(1 for _ in self)


decoders = _CodecTable("decode")
encoders = _CodecTable("encode")
