"""The registry of codecs: everything tarmac knows about fields, by extension.

Reading, writing, indexing and the shard tools all look here. A new format is one `Codec` and one call of
`register_codec`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar, get_args

from tarmac.codecs.handlers import SAFE, DecodeFunction, DecodeOptions, FieldHandler, extension_of
from tarmac.errors import UsageError
from tarmac.limits import Limits

T = TypeVar("T")
Kind = Literal["bytes", "int", "text", "json", "array", "image", "audio", "video"]
_EXTENSION = re.compile(r"[^./\\\x00-\x20\x7f]+")


@dataclass(frozen=True, eq=False)
class Codec(Generic[T]):
    """How to treat the fields that have certain extensions.

    >>> codec = Codec("fp16", decode=load_vector, encode=dump_vector, kind="array")
    >>> tarmac.register_codec(codec)

    Every part is optional. Without `decode`, fields stay bytes; without `encode`, writers accept only bytes,
    and strings in text fields. Import heavy libraries inside the functions.
    """

    extensions: str
    """Extensions without their dot, separated by spaces: `"jpg jpeg"`. Case does not matter."""
    decode: Callable[..., T] | None = None
    """Called as `decode(data)` with the bytes of a field. It may raise any exception."""
    encode: Callable[[T], bytes] | None = None
    """Called with any value other than bytes, which are stored as they are, and strings, which only `int`, `text`
    and `json` fields store."""
    kind: Kind = "bytes"
    """What the bytes hold. `int`, `text` and `json` fields become columns of that type in exports and indexes;
    `tarmac show` prints text and JSON, summarises arrays and displays images."""
    attributes: tuple[str, ...] = ()
    """Names of the metadata that an index can store for such a field, as in `jpg.width`."""
    read_attributes: Callable[[bytes, Limits], Mapping[str, Any]] | None = None
    """Returns the values of `attributes`, reading no more of the data than necessary."""
    takes_options: bool = False
    """Whether `decode` has a second parameter `options`, a `DecodeOptions` with limits."""

    def __post_init__(self) -> None:
        if not self.names or not all(map(_EXTENSION.fullmatch, self.names)):
            raise UsageError(
                f"expected extensions without dots, separated by spaces, got {self.extensions!r}.",
                field="extensions",
                hint="tarmac.webdataset.handle_extension decodes names with several dots, such as seg.png.",
            )
        if self.kind not in get_args(Kind):
            raise UsageError(f"expected one of {', '.join(get_args(Kind))}, got {self.kind!r}.", field="kind")
        if bool(self.attributes) != (self.read_attributes is not None):
            raise UsageError("`attributes` and `read_attributes` require each other.", field="attributes")

    @property
    def names(self) -> tuple[str, ...]:
        """The extensions in lower case."""
        return tuple(self.extensions.lower().split())

    def decoder(self, options: DecodeOptions = SAFE) -> Callable[[bytes], T] | None:
        """Return `decode` with these options applied."""
        if self.decode is None or not self.takes_options or options == SAFE:
            return self.decode
        return partial(self.decode, options=options)


_registry: dict[str, Codec[Any]] = {}


def register_codec(codec: Codec[Any], *, replace: bool = False) -> None:
    """Register a codec for its extensions, for this process.

    Registering an extension that has a codec raises `UsageError` unless `replace` is true. Decoders and
    writers that have already seen a field with that extension keep the codec they used.

    Worker processes started by `spawn` or `forkserver` import modules from scratch. Call `register_codec` at
    the top level of a module that they import: the main script, outside `if __name__ == "__main__"`, or the
    module of a function that the dataset maps.
    """
    if not replace:
        for name in codec.names:
            if _registry.get(name, codec) is not codec:
                raise UsageError(
                    f'the extension "{name}" is already registered.',
                    field="codec",
                    hint="another extension, or `replace=True`.",
                )
    _registry.update(dict.fromkeys(codec.names, codec))


def find_codec(field: str) -> Codec[Any] | None:
    """Return the codec of a field name or extension; None if it has none."""
    return _registry.get(extension_of(field))


def kind_of(field: str) -> Kind:
    """Return what a field holds, judged by its extension."""
    codec = find_codec(field)
    return "bytes" if codec is None else codec.kind


def is_binary(field: str) -> bool:
    """Return whether a field, compressed or not, has a codec whose bytes are not text."""
    codec = find_codec(field.lower().removesuffix(".gz"))
    return codec is not None and codec.kind not in ("text", "int", "json")


def registered_codecs() -> Iterator[tuple[str, Codec[Any]]]:
    """Yield every registered extension and its codec."""
    yield from _registry.items()


class RegisteredCodecs(FieldHandler):
    """Decodes fields with the registered codecs."""

    def find(self, key: str, options: DecodeOptions) -> DecodeFunction | None:
        codec = find_codec(key)
        return None if codec is None else codec.decoder(options)

    def __reduce__(self) -> str:
        return "basichandlers"


basichandlers = RegisteredCodecs()
"""The default last handler of a `Decoder`; the name is that of the webdataset library."""
