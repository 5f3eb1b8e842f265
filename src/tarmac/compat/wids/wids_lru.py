"""`wids.wids_lru`: a dictionary of limited size."""

from __future__ import annotations

from tarmac.compat.lru import (
    LRUCache,
)

__all__ = [
    "LRUCache",
]
