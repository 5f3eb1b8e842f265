"""Handlers: the functions that a `Decoder` tries on each field.

A handler is called as `handler(key, data)`, where the key is the field name after a dot. It returns the
decoded value, None if it does not handle the field, or a `Continue` to pass changed bytes to the next handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tarmac.limits import DEFAULT_LIMITS, Limits

DecodeFunction = Callable[[bytes], Any]
Handler = Callable[[str, bytes], Any]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What the caller of a decoder allows."""

    allow_pickle: bool = False
    limits: Limits = DEFAULT_LIMITS


SAFE = DecodeOptions()
"""The default: no pickles, default limits."""


class Continue:
    """Returned by a handler that changed the bytes: later handlers get this key and data."""

    def __init__(self, key: str, data: bytes) -> None:
        self.key = key
        self.data = data


class FieldHandler:
    """A handler whose behaviour depends on the key alone, so that a `Decoder` asks it once per field name.

    Subclasses implement `find`. A subclass that overrides `__call__` is called for every field instead.
    """

    final = True
    """Whether None is a decoded value (JSON has null), rather than "not my field"."""

    def find(self, key: str, options: DecodeOptions) -> DecodeFunction | None:
        """Return the function that decodes this key, or None to leave it to other handlers."""
        raise NotImplementedError

    def inner(self, key: str) -> str | None:
        """Return the key of the unwrapped bytes, for a wrapper such as gzip."""
        del key
        return None

    def __call__(self, key: str, data: bytes) -> Any:
        function = self.find(key, SAFE)
        if function is None:
            return None
        value = function(data)
        inner = self.inner(key)
        return value if inner is None else Continue(inner, value)


class ExtensionHandler(FieldHandler):
    """Decodes fields with certain extensions, such as `"jpg seg.jpg"`, by `f(data)`.

    An extension with a dot matches that many parts: `seg.jpg` matches `a.seg.jpg`, not `a.jpg`. Case does
    not matter.
    """

    final = False

    def __init__(self, extensions: str | Iterable[str], f: DecodeFunction) -> None:
        names = extensions.split() if isinstance(extensions, str) else extensions
        self.suffixes = tuple(f".{name.lower()}" for name in names)
        self.function = f

    def find(self, key: str, options: DecodeOptions) -> DecodeFunction | None:
        del options
        return self.function if f".{key.lower()}".endswith(self.suffixes) else None


handle_extension = ExtensionHandler
"""The name in the webdataset library."""


def extension_of(key: str) -> str:
    """Return what follows the last dot, in lower case."""
    return key.rpartition(".")[2].lower()
