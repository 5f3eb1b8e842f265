"""Check the types of arguments, so that a mistake is an error that names the argument."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from tarmac.errors import UsageError

_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (lambda value: isinstance(value, Integral) and not _is_bool(value), "a whole number"),
    "float": (lambda value: isinstance(value, Real) and not _is_bool(value) and value == value, "a number"),
    "str": (lambda value: isinstance(value, str | os.PathLike), "text"),
    "bool": (lambda value: _is_bool(value), "True or False"),
}
"""What arguments with simple annotations may be; numbers and truth values also those of numpy."""


def _is_bool(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_")


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
