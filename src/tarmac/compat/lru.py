"""A dictionary of limited size that lets go of what was not used for longest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, ItemsView, KeysView, ValuesView
from typing import Any

__all__ = ["LRUCache"]


class LRUCache:
    """At most `capacity` values; `release_handler(key, value)` is called once for each that goes."""

    def __init__(self, capacity: int, release_handler: Callable[[Any, Any], object] | None = None) -> None:
        self.capacity = capacity
        self.release_handler = release_handler
        self.cache: OrderedDict[Hashable, Any] = OrderedDict()

    def __getitem__(self, key: Hashable) -> Any:
        """Return a value, which is then the one used last; None if it is not there."""
        if key not in self.cache:
            return None
        self.cache.move_to_end(key)
        return self.cache[key]

    def __setitem__(self, key: Hashable, value: Any) -> None:
        old = self.cache.pop(key, value)
        self.cache[key] = value
        if old is not value:
            self._release(key, old)
        while len(self.cache) > self.capacity:
            self._release(*self.cache.popitem(last=False))

    def __delitem__(self, key: Hashable) -> None:
        if key in self.cache:
            self._release(key, self.cache.pop(key))

    def __contains__(self, key: Hashable) -> bool:
        return key in self.cache

    def __len__(self) -> int:
        return len(self.cache)

    def keys(self) -> KeysView[Any]:
        """The keys, the one used last at the end."""
        return self.cache.keys()

    def values(self) -> ValuesView[Any]:
        """The values, the one used last at the end."""
        return self.cache.values()

    def items(self) -> ItemsView[Any, Any]:
        """Keys and values, those used last at the end."""
        return self.cache.items()

    def clear(self) -> None:
        """Let go of everything."""
        while self.cache:
            self._release(*self.cache.popitem(last=False))

    def _release(self, key: Hashable, value: Any) -> None:
        if self.release_handler is not None:
            self.release_handler(key, value)
