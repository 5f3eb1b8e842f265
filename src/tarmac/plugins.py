"""Load plug-ins: installed packages that register verbs, engines, formats, codecs or schemes.

A package names a module in the entry-point group `tarmac.plugins`, and importing that module registers what it adds.
The command line and its workers load plug-ins. Programs import the modules that they need.
"""

from __future__ import annotations

import warnings

from tarmac.errors import TarmacWarning

_loaded = False


def load_plugins(*, warn: bool = True) -> None:
    """Import the module of every plug-in, once; warn about those that fail."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    from importlib.metadata import entry_points

    for entry in entry_points(group="tarmac.plugins"):
        try:
            entry.load()
        except Exception as error:  # one broken package must not disable the others
            if not warn:
                continue
            reason = f"{type(error).__name__}: {error}"
            text = f"the plug-in {entry.name!r} ({entry.value}) cannot be imported: {reason}."
            warnings.warn(TarmacWarning(text), stacklevel=2)


def plugins_loaded() -> bool:
    """Return whether this process has loaded plug-ins, so that its workers must load them, too."""
    return _loaded
