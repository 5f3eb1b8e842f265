"""Programs written for the webdataset library, unchanged: `import webdataset` finds tarmac.

    python -m tarmac.compat train.py --epochs 3
    python -m tarmac.compat -m open_clip_train.main --train-data …

or, in code that runs before the first `import webdataset`:

    import tarmac.compat
    tarmac.compat.install()

The names below `webdataset` are re-exports of tarmac's own.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

__all__ = ["install", "uninstall"]

MODULES = [
    "autodecode",
    "cache",
    "compat",
    "extradatasets",
    "filters",
    "gopen",
    "handlers",
    "mix",
    "pipeline",
    "pytorch",
    "shardlists",
    "tariterators",
    "tenbin",
    "utils",
    "writer",
]

_SHIM = os.path.join(os.path.dirname(__file__), "shim")
_before: dict[str, ModuleType] = {}


def install() -> None:
    """Make `import webdataset`, and imports of its submodules, find tarmac from now on.

    Processes that multiprocessing spawns from this one find it too. Modules that have imported the
    library itself keep what they have.
    """
    if _is_ours("webdataset"):
        return
    modules = {"webdataset": importlib.import_module("tarmac.compat.webdataset")}
    for name in MODULES:
        modules[f"webdataset.{name}"] = importlib.import_module(f"tarmac.compat.webdataset.{name}")
    for name in [name for name in sys.modules if name == "webdataset" or name.startswith("webdataset.")]:
        # What of the library is loaded is set aside as a whole, so that no half of it is left in reach.
        _before[name] = sys.modules.pop(name)
    sys.modules.update(modules)
    if _SHIM not in sys.path:
        sys.path.insert(0, _SHIM)


def uninstall() -> None:
    """Take `install` back, for tests: what was there before is there again."""
    if not _is_ours("webdataset"):
        return
    for name in ["webdataset", *(f"webdataset.{name}" for name in MODULES)]:
        sys.modules.pop(name, None)
    sys.modules.update(_before)
    _before.clear()
    if _SHIM in sys.path:
        sys.path.remove(_SHIM)


def _is_ours(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and module is sys.modules.get(f"tarmac.compat.{name}")
