"""Programs written for the webdataset and wids libraries, unchanged: their imports find tarmac.

    python -m tarmac.compat train.py --epochs 3
    python -m tarmac.compat -m open_clip_train.main --train-data …

or, in code that runs before the first `import webdataset` or `import wids`:

    import tarmac.compat
    tarmac.compat.install()

The names below `webdataset` and `wids` are re-exports of tarmac's own.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

__all__ = ["install", "install_wids", "uninstall"]

MODULES = [
    "autodecode",
    "cache",
    "compat",
    "extradatasets",
    "filters",
    "gopen",
    "handlers",
    "mix",
    "multi",
    "pipeline",
    "pytorch",
    "shardlists",
    "tariterators",
    "tenbin",
    "utils",
    "writer",
]

WIDS_MODULES = [
    "wids",
    "wids_cleanup",
    "wids_decode",
    "wids_dl",
    "wids_index",
    "wids_lru",
    "wids_mmtar",
    "wids_specs",
    "wids_tar",
]

_SHIM = os.path.join(os.path.dirname(__file__), "shim")
_before: dict[str, ModuleType] = {}


def install() -> None:
    """Make `import webdataset`, `import wids`, and imports of their submodules, find tarmac from now on.

    Processes that multiprocessing spawns from this one find it too. Modules that have imported the
    libraries themselves keep what they have.
    """
    if _is_ours("webdataset"):
        return
    _replace("webdataset", MODULES)
    _set_aside("wids")  # found through the path when it is asked for, because it needs NumPy and Arrow
    if _SHIM not in sys.path:
        sys.path.insert(0, _SHIM)


def install_wids() -> None:
    """Put tarmac's names in the place of `wids`; the first `import wids` after `install` does it."""
    if not _is_ours("wids"):
        _replace("wids", WIDS_MODULES)


def uninstall() -> None:
    """Take `install` back, for tests: what was there before is there again."""
    if not _is_ours("webdataset"):
        return
    for package in ("webdataset", "wids"):
        for name in _loaded(package):
            del sys.modules[name]
    sys.modules.update(_before)
    _before.clear()
    if _SHIM in sys.path:
        sys.path.remove(_SHIM)


def _replace(package: str, names: list[str]) -> None:
    modules = {package: importlib.import_module(f"tarmac.compat.{package}")}
    for name in names:
        modules[f"{package}.{name}"] = importlib.import_module(f"tarmac.compat.{package}.{name}")
    _set_aside(package)
    sys.modules.update(modules)


def _set_aside(package: str) -> None:
    """What of a library is loaded is set aside as a whole, so that no half of it is left in reach."""
    for name in _loaded(package):
        module = sys.modules.pop(name)
        if getattr(module, "__file__", None) != os.path.join(_SHIM, f"{package}.py"):
            _before[name] = module


def _loaded(package: str) -> list[str]:
    return [name for name in sys.modules if name == package or name.startswith(f"{package}.")]


def _is_ours(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and module is sys.modules.get(f"tarmac.compat.{name}")
