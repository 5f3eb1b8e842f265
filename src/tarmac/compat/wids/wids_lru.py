"""`wids.wids_lru`: a dictionary with a limited size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class LRUCache(OrderedDict[Any, Any]):
    """A dictionary that removes the least recently used items beyond `capacity`.

    `release_handler(key, value)` is called for each value that is removed or replaced. A missing key returns None.
    """

    def __init__(self, capacity: int, release_handler: Callable[[Any, Any], object] | None = None) -> None:
        super().__init__()
        self.capacity = capacity
        self.release_handler = release_handler

    def __getitem__(self, key: Any) -> Any:
        if key not in self:
            return None
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self[key] is not value:
            del self[key]
        super().__setitem__(key, value)
        while len(self) > self.capacity:
            del self[next(iter(self))]

    def __delitem__(self, key: Any) -> None:
        if key in self:
            value = self[key]
            super().__delitem__(key)
            if self.release_handler is not None:
                self.release_handler(key, value)

    def clear(self) -> None:
        """Remove all items."""
        for key in list(self):
            del self[key]
