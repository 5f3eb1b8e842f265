"""The registry of codecs as the two dictionaries of the webdataset library."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from typing import Any, Literal

from tarmac.codecs.registry import Codec, find_codec, register_codec, registered_codecs

__all__ = ["decoders", "encoders"]


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
