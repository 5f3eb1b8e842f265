"""tarmac: the runway from raw data to training batches.

Datasets live in plain tar shards (the WebDataset convention). Start from what you need:

- `read` yields raw samples, and `ShardWriter` writes them.
- `WebDataset` streams shards through a pipeline into batches.
- `Dataset` and `Loader` give indexed access and an exact, resumable order.
- `pack`, `copy`, `sort`, `map`, `join`, `index`, `check` and `export` are the command-line verbs as functions.

The names of the webdataset library are in `tarmac.webdataset`.
"""

from __future__ import annotations

import importlib
import os

__version__ = "0.1.0"


def _read_stub() -> dict[str, tuple[str, str]]:
    """Return the module and name of every public name, as listed in `__init__.pyi`."""
    names = {}
    with open(os.path.join(os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as stub:
        for line in stub:
            if line.startswith("from "):
                _, module, _, name, _, public = line.split()
                names[public] = (module, name)
    return names


# Names are imported on first use, so that `import tarmac` stays fast.
_names = _read_stub()
__all__ = sorted(_names, key=str.lower)
_modules = ("extras", "storage", "webdataset")
"""Modules that are imported on first use, too."""


def __getattr__(name: str) -> object:
    if name in _modules:
        return importlib.import_module(f"tarmac.{name}")
    if name not in _names:
        raise AttributeError(f"module 'tarmac' has no attribute {name!r}")
    module, attribute = _names[name]
    value = (
        importlib.import_module(f"{module}.{attribute}")
        if module == "tarmac"
        else getattr(importlib.import_module(module), attribute)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
