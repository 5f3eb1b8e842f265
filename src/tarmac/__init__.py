"""tarmac: the runway from raw data to training batches.

Datasets live in plain tar shards (the WebDataset convention). `read` gives their samples from local
disk, web servers and object stores, strictly: everything, or an error that names the place.
`TarWriter` and `ShardWriter` write them, whole or not at all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tarmac import errors
    from tarmac.limits import Limits
    from tarmac.samples.naming import first_dot, known_fields, last_dot
    from tarmac.samples.reader import SampleReader, read
    from tarmac.samples.shards import ShardWriter
    from tarmac.samples.writer import TarWriter
    from tarmac.storage import Cache, StorageOptions, WriteOptions, enforce_security, register_scheme
    from tarmac.tar import TarOptions
    from tarmac.urls import expand

# Names are imported when first used, so that `import tarmac` stays quick and light.
_HOMES = {
    "Cache": "tarmac.storage.cache",
    "enforce_security": "tarmac.storage.security",
    "errors": "tarmac",
    "expand": "tarmac.urls",
    "first_dot": "tarmac.samples.naming",
    "known_fields": "tarmac.samples.naming",
    "last_dot": "tarmac.samples.naming",
    "Limits": "tarmac.limits",
    "read": "tarmac.samples.reader",
    "register_scheme": "tarmac.storage.schemes",
    "SampleReader": "tarmac.samples.reader",
    "ShardWriter": "tarmac.samples.shards",
    "StorageOptions": "tarmac.storage.types",
    "TarOptions": "tarmac.tar.reader",
    "TarWriter": "tarmac.samples.writer",
    "WriteOptions": "tarmac.storage.types",
}

__all__ = [
    "Cache",
    "enforce_security",
    "errors",
    "expand",
    "first_dot",
    "known_fields",
    "last_dot",
    "Limits",
    "read",
    "register_scheme",
    "SampleReader",
    "ShardWriter",
    "StorageOptions",
    "TarOptions",
    "TarWriter",
    "WriteOptions",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tarmac' has no attribute {name!r}")
    value = (
        importlib.import_module(f"tarmac.{name}")
        if home == "tarmac"
        else getattr(importlib.import_module(home), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
