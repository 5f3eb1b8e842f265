"""What decoders have in common: handlers, the settings of a decode, and optional libraries.

A handler is called as `handler(key, data)`, where the key is the field name behind a dot. It returns
the value, or `None` for "not mine", or a `Continue` for "now look at these bytes under this key".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tarmac.limits import DEFAULT_LIMITS, Limits

__all__ = [
    "SAFE",
    "Continue",
    "FieldHandler",
    "Function",
    "Handler",
    "Settings",
    "extension_of",
    "handle_extension",
    "words",
]

Function = Callable[[bytes], Any]
Handler = Callable[[str, bytes], Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the caller of a decode allows."""

    allow_pickle: bool = False
    limits: Limits = DEFAULT_LIMITS


SAFE = Settings()
"""What holds when nobody says anything."""


class Continue:
    """Returned by a handler that changed the bytes: the handlers after it see this key and data."""

    def __init__(self, key: str, data: bytes) -> None:
        self.key = key
        self.data = data


class FieldHandler:
    """A handler that knows from the key alone what it will do, so that a `Decoder` asks it only once.

    Subclasses say what in `find`. One that overrides `__call__` instead is called for every field.
    """

    final = True
    """Whether a value of `None` is the answer (JSON has a null), rather than "not mine"."""

    def find(self, key: str, settings: Settings) -> Function | None:
        """Return the function for the bytes of this key, or None if others should look at it."""
        raise NotImplementedError

    def inner(self, key: str) -> str | None:
        """For a wrapping such as gzip: the key under which the bytes inside go on."""
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
    """Calls a function for the keys that end in one of some extensions."""

    final = False

    def __init__(self, extensions: str | Iterable[str], function: Function) -> None:
        names = extensions.split() if isinstance(extensions, str) else extensions
        self.suffixes = tuple(f".{name.lower()}" for name in names)
        self.function = function

    def find(self, key: str, settings: Settings) -> Function | None:
        del settings
        return self.function if f".{key.lower()}".endswith(self.suffixes) else None


def handle_extension(extensions: str | Iterable[str], f: Function) -> ExtensionHandler:
    """Make a handler that decodes with `f(data)` the fields of these extensions, given as `"jpg seg.jpg"`.

    An extension with a dot asks for that many parts: `seg.jpg` is for `a.seg.jpg`, not for `a.jpg`.
    Upper and lower case are the same.
    """
    return ExtensionHandler(extensions, f)


def words(text: str) -> list[str]:
    """Return the names in a text, for lists that are better read in lines than in columns."""
    return text.split()


def extension_of(key: str) -> str:
    """Return what follows the last dot, in lower case."""
    return key.rpartition(".")[2].lower()
