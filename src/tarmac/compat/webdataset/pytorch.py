"""`webdataset.pytorch`: classes of torch, imported when they are asked for, or stand-ins without torch."""

from __future__ import annotations

from typing import Any

from tarmac.compat.helpers import torch_name

__all__ = ["DataLoader", "IterableDataset", "TorchTensor"]  # noqa: F822


def __getattr__(name: str) -> Any:
    return torch_name(name)
