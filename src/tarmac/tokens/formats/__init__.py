"""The formats that `combine` writes, one module each."""

from __future__ import annotations

import importlib

from tarmac.errors import UsageError
from tarmac.tokens.formats.base import Format

NAMES = ("tarmac", "npy", "tensordict", "megatron", "sidecar")
"""The formats; each is the module of its name, with the object `FORMAT`."""


def find_format(name: str) -> Format:
    """Return a format by name."""
    if name not in NAMES:
        raise UsageError(f"expected one of {', '.join(NAMES)}, got {name!r}.", field="format")
    chosen: Format = importlib.import_module(f"{__name__}.{name}").FORMAT
    return chosen
