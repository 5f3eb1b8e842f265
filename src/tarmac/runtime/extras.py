"""Import libraries that only some features need."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["import_extra", "is_missing_extra"]

_DISTRIBUTION = "tarmac-data"


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import a module, or raise an ImportError that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = f"{_DISTRIBUTION}[{extra}]"
        raise ImportError(f'{purpose} need an extra: pip install "{name}"', name=name) from None


def is_missing_extra(error: BaseException) -> bool:
    """Return whether `import_extra` raised the error, rather than an import inside the data being decoded."""
    return isinstance(error, ImportError) and (error.name or "").startswith(f"{_DISTRIBUTION}[")
