"""Check arguments, so that a wrong one is named before anything is done with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from operator import index
from typing import Any, SupportsFloat, SupportsIndex

from tarmac.errors import UsageError

_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda value: isinstance(value, Integral) and not _is_bool(value), "a whole number"),
    "float": (lambda value: isinstance(value, Real) and not _is_bool(value) and value == value, "a number"),
    "str": (lambda value: isinstance(value, str | os.PathLike), "text"),
    "bool": (lambda value: _is_bool(value), "True or False"),
}
"""What arguments with simple annotations may be; numbers and truth values also those of numpy."""


def check_count(name: str, value: object, least: int) -> int:
    """Return the argument `name`; raise UsageError unless it is a whole number of at least `least`."""
    if not isinstance(value, SupportsIndex) or index(value) < least:
        raise UsageError(f"expected {least} or more, got {value!r}.", field=name)
    return index(value)


def check_share(name: str, value: object, what: str) -> None:
    """Raise UsageError unless the argument `name` is a number above 0 and up to 1; `what` says of what."""
    if not isinstance(value, SupportsFloat) or not 0 < float(value) <= 1:
        raise UsageError(f"expected {what} above 0 and up to 1, got {value!r}.", field=name)


def check_text(name: str, value: object, what: str) -> None:
    """Raise UsageError unless the argument `name` is text, or None; `what` says which."""
    if value is not None and not isinstance(value, str):
        raise UsageError(f"expected {what}, got {value!r}.", field=name)


def check_types(annotations: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise UsageError for a value that its annotation, such as `int | None`, does not allow; others pass unchecked.

    The annotations are text, as `from __future__ import annotations` leaves them.
    """
    for name, value in values.items():
        kinds = str(annotations.get(name, "")).split(" | ")
        if (value is None and "None" in kinds) or not {*kinds} <= {*_KINDS, "None"}:
            continue
        expected = [_KINDS[kind] for kind in kinds if kind != "None"]
        if not any(allowed(value) for allowed, _ in expected):
            what = " or ".join(words for _, words in expected)
            raise UsageError(f"expected {what}, got {value!r}.", field=name)


def as_names(value: object, field: str) -> tuple[str, ...]:
    """Return names that are given as a list, or as text with commas, which may have spaces behind them."""
    if isinstance(value, str):
        return tuple(stripped for name in value.split(",") if (stripped := name.strip()))
    if value is None:
        return ()
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, bytes) else (value,)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"expected a list of names, got {value!r}.", field=field)
    return names


def _is_bool(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_")
