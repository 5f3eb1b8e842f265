"""Import the modules of the package `tarmac-native`, which does the same work in less time."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

_INTERFACE = 2


def jpeg() -> Any:
    """Return the module that decodes parts of JPEGs, or None."""
    return _module("jpeg")


def pixels() -> Any:
    """Return the module that resizes arrays of bytes, or None."""
    return _module("pixels")


@cache
def _module(name: str) -> Any:
    """Return a module, or None if it is not installed or belongs to another version of tarmac."""
    try:
        module = importlib.import_module(f"tarmac_native.{name}")
    except ImportError:
        return None
    return module if getattr(module, "INTERFACE", 1) == _INTERFACE else None
