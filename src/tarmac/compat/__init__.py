"""Run programs for the webdataset and wids libraries on tarmac without changes.

    python -m tarmac.compat train.py --epochs 3
    python -m tarmac.compat -m open_clip_train.main --train-data …
    python -m tarmac.compat --allow-pickle train.py

or, in code that runs before the first `import webdataset` or `import wids`:

    import tarmac.compat
    tarmac.compat.install()
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from types import ModuleType

__all__ = ["install", "install_wids", "uninstall"]

_SHIM = os.path.join(os.path.dirname(__file__), "shim")
_replaced: dict[str, ModuleType] = {}


def install() -> None:
    """Make `import webdataset`, `import wids`, and imports of their submodules, find tarmac from now on.

    This also holds for processes that multiprocessing spawns from this one. Modules that have already imported the
    libraries keep them.
    """
    if _is_installed("webdataset"):
        return
    _replace("webdataset")
    _remove("wids")  # its first import finds the shim, because it needs NumPy and Arrow
    if _SHIM not in sys.path:
        sys.path.insert(0, _SHIM)


def install_wids() -> None:
    """Replace `wids`; called by the first `import wids` after `install`."""
    if not _is_installed("wids"):
        _replace("wids")


def uninstall() -> None:
    """Undo `install`, for tests: restore the previous modules."""
    if not _is_installed("webdataset"):
        return
    for package in ("webdataset", "wids"):
        for name in _loaded(package):
            del sys.modules[name]
    sys.modules.update(_replaced)
    _replaced.clear()
    if _SHIM in sys.path:
        sys.path.remove(_SHIM)


def alias_modules(package: str, name: str) -> dict[str, ModuleType]:
    """Import the submodules of `tarmac.compat.<package>`. Return them under the names `<name>.<submodule>`."""
    parent = importlib.import_module(f"tarmac.compat.{package}")
    return {
        f"{name}.{info.name}": importlib.import_module(f"{parent.__name__}.{info.name}")
        for info in pkgutil.iter_modules(parent.__path__)
        if not info.name.startswith("_")
    }


def _replace(package: str) -> None:
    modules = alias_modules(package, package)
    _remove(package)
    sys.modules.update({package: sys.modules[f"tarmac.compat.{package}"], **modules})


def _remove(package: str) -> None:
    """Remove a library with all its submodules, so that none of them stay importable beside ours."""
    for name in _loaded(package):
        module = sys.modules.pop(name)
        if getattr(module, "__file__", None) != os.path.join(_SHIM, f"{package}.py"):
            _replaced[name] = module


def _loaded(package: str) -> list[str]:
    return [name for name in sys.modules if name == package or name.startswith(f"{package}.")]


def _is_installed(package: str) -> bool:
    module = sys.modules.get(package)
    return module is not None and module is sys.modules.get(f"tarmac.compat.{package}")
