"""Remember where the samples of open shards are, so that a batch of them is located at once.

Single lookups touch a dozen objects per shard, which the caches of a processor no longer hold when hundreds of
shards are in use. The table has the offsets of all of them in one array.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tarmac.exact.indexed import IndexedShard, cut_out
from tarmac.exact.types import Rows
from tarmac.runtime.types import Integers
from tarmac.samples.grouping import Sample
from tarmac.storage.locks import forget_in_children

ROWS = 1 << 21
"""Largest number of samples in a table; each takes tens of bytes."""
PAYS = 64
"""How many samples a shard may have for each use before it enters the table: that costs less than these uses."""
_UNKNOWN, _UNFIT = -1, -2


class Table:
    """The offsets of key and fields of the samples of uniform shards. Threads may read while one adds a shard.

    `lengths` are the numbers of samples of all shards. Shards in the table stay open.
    """

    def __init__(self, lengths: Integers) -> None:
        self._lengths, self._begins = lengths, np.cumsum(lengths) - lengths
        self._capacity = min(int(lengths.sum()), ROWS)
        self._first: Integers = np.full(len(lengths), _UNKNOWN, np.int64)
        """The row of the first sample of each shard."""
        self._uses = np.zeros(len(lengths), np.int64)
        self._shards: list[IndexedShard | None] = [None] * len(lengths)
        self._urls: list[str] = [""] * len(lengths)
        self._texts: list[str] = [""] * len(lengths)
        self._contents: list[Any] = [None] * len(lengths)
        self._names: list[str] = []
        self._bounds: Integers = np.zeros((0, 0), np.int64)
        self._used = 0
        self.forget()
        forget_in_children(self)

    def forget(self) -> None:
        """Replace the lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()

    def holds(self, shards: Integers) -> NDArray[np.bool_]:
        """Return which of these shards are in the table."""
        return self._first[shards] >= 0

    def due(self, shards: Integers) -> list[int]:
        """Count a use of each of these shards, and return those which should now be added."""
        unknown = shards[self._first[shards] == _UNKNOWN]
        if not len(unknown):
            return []
        np.add.at(self._uses, unknown, 1)
        pays = self._uses[unknown] * PAYS >= self._lengths[unknown]
        return [int(shard) for shard in np.unique(unknown[pays])]

    def add(self, number: int, shard: IndexedShard | None, rows: Rows | None) -> bool:
        """Add some rows of a shard, or None for all, if it fits to the others; return False if the table is full."""
        size = int(self._lengths[number])
        with self._lock:
            if self._first[number] != _UNKNOWN:
                return True
            names = None if shard is None or shard.sidecar.text is None else shard.names
            if shard is None or not names or names != (self._names or names) or size > self._capacity:
                self._first[number] = _UNFIT
                return True
            begin, end = self._used, self._used + size
            if end > self._capacity:
                return False
            selected = slice(None) if rows is None else rows.astype(np.int64)
            bounds = np.concatenate([shard.sidecar.text_bounds(selected), shard.bounds(selected)], axis=1)
            if not self._names:
                self._names = names
                self._bounds = np.empty((self._capacity, bounds.shape[1]), np.int64)
            self._bounds[begin:end], self._used = bounds, end
            self._shards[number] = shard
            self._urls[number], self._contents[number] = shard.url, shard.data
            self._texts[number] = shard.sidecar.text or ""
            self._first[number] = begin  # from now on other threads read it
        return True

    def samples(self, shards: Integers, numbers: Integers) -> list[Sample]:
        """Return the samples with these numbers, counted over all shards; their shards are in the table."""
        rows = numbers - self._begins[shards] + self._first[shards]
        starts, stops, *bounds = self._bounds.take(rows, axis=0).T.tolist()
        owners, texts = shards.tolist(), self._texts
        keys = [texts[shard][start:stop] for shard, start, stop in zip(owners, starts, stops, strict=True)]
        urls, contents = map(self._urls.__getitem__, owners), map(self._contents.__getitem__, owners)
        return list(cut_out(self._names, keys, urls, contents, bounds))
