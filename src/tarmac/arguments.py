"""Check arguments, so that a wrong one is named before anything is done with it."""

from __future__ import annotations

from operator import index
from typing import SupportsFloat, SupportsIndex

from tarmac.errors import UsageError


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
