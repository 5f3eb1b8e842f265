"""`webdataset.pytorch`: classes of torch, imported on first use; without torch, placeholders."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["DataLoader", "IterableDataset", "TorchTensor"]  # noqa: F822

_CLASSES = {
    "DataLoader": ("torch.utils.data", "DataLoader"),
    "IterableDataset": ("torch.utils.data", "IterableDataset"),
    "TorchTensor": ("torch", "Tensor"),
}


class _Placeholder:
    """Stands for a class of torch if torch is not installed; nothing is an instance of it."""


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module 'webdataset.pytorch' has no attribute {name!r}")
    module, attribute = _CLASSES[name]
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError:
        return _Placeholder
