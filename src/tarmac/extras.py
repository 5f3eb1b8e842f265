"""Import optional libraries, which are installed by the extras of the distribution `tarmac-data`."""

from __future__ import annotations

import sys
from typing import Any


class MissingExtra(ImportError):
    """An optional library is not installed.

    This is not a `TarmacError`, because no sample or shard is at fault and handlers must not skip them.
    """


def missing_package(library: str, packages: str, feature: str) -> MissingExtra:
    """Return the error for a library that no extra installs, such as one of models."""
    return MissingExtra(
        f"{feature}: the library {library} is not installed. Try: pip install {packages}", name=packages
    )


def import_extra(name: str, extra: str, feature: str) -> Any:
    """Import a library that `extra` installs. Raise MissingExtra if it is missing."""
    try:
        __import__(name)
        return sys.modules[name]
    except ImportError:
        raise MissingExtra(
            f'{feature}: the library {name} is not installed. Try: pip install "tarmac-data[{extra}]"',
            name=f"tarmac-data[{extra}]",
        ) from None
