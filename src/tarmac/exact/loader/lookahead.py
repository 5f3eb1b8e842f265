"""Fetch remote shards into the cache before they are needed, and close or evict first those that are done.

The order of an epoch is known, so nothing has to be guessed. While a batch is built, the shards of the next
batches are downloaded as far as the cache has room. A shard whose last sample was read is evicted from the cache
first, and closed first if more shards are in use than can be open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tarmac.exact.dataset import Dataset
from tarmac.exact.order.epochs import Request
from tarmac.exact.order.mixture import EpochOrder
from tarmac.exact.selection import Part
from tarmac.storage import is_local

HORIZON = 32
"""Number of batches whose shards are fetched ahead."""
DOWNLOADS = 16
"""Parallel downloads. A batch may need a sample of every shard, and most of the time a download waits for a server."""


class LookAhead:
    """Tracks which shards of a dataset are needed soon, and which are no longer needed in this epoch.

    That matters for cached shards, and for datasets with more shards than can be open.
    """

    def __init__(self, dataset: Dataset[Any], order: EpochOrder) -> None:
        self._dataset, self._order = dataset, order
        self._enabled = any(_is_tracked(part) for part in dataset._parts)
        self._epoch = -1
        self._last: dict[int, int | None] = {}  # the last position of each shard in use
        self._waiting: deque[int] = deque()  # shards to fetch when there is room

    def fetching(self, requests: Iterator[Request], horizon: int = HORIZON) -> Generator[Request, None, None]:
        """Yield the requests, and download the shards of later ones meanwhile."""
        if not self._enabled:
            yield from requests
            return
        ahead: deque[Request] = deque()
        pool = ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="tarmac-fetch")
        try:
            for request in requests:
                ahead.append(request)
                self._waiting.extend(filter(self._cached, self._begin(request)))
                self._fetch(pool)
                if len(ahead) > horizon:
                    yield ahead.popleft()
            for request in ahead:
                self._fetch(pool)
                yield request
        finally:
            self._waiting.clear()
            pool.shutdown(wait=True, cancel_futures=True)

    def batch_done(self, request: Request) -> None:
        """Release the shards whose last sample was in this batch or earlier."""
        if not self._enabled:
            return
        self._begin(request)
        current = request.first + request.stride * (request.size - 1)
        for shard, last in list(self._last.items()):
            if last is not None and last <= current:
                del self._last[shard]
                self._retire(shard)

    def _begin(self, request: Request) -> list[int]:
        """Register the shards of a batch and return the new ones."""
        if request.epoch != self._epoch:
            for shard in self._last:
                self._retire(shard)
            self._epoch, self._last = request.epoch, {}
        indices = self._order.at(request.epoch, request.positions)
        shards = np.unique(self._dataset._fetcher.shard_numbers(indices)).tolist()
        new = [
            shard
            for shard in shards
            if shard not in self._last and _is_tracked(self._dataset._fetcher.shard(shard)[0])
        ]
        for shard in new:
            self._last[shard] = self._order.last_position(request.epoch, shard)
        return new

    def _fetch(self, pool: ThreadPoolExecutor) -> None:
        """Start downloads of waiting shards, as far as there is room."""
        held = set(self._last) - set(self._waiting)
        room: dict[int, float] = {}
        while self._waiting:
            shard = self._waiting[0]
            part, number = self._dataset._fetcher.shard(shard)
            cache = part.shards.options.cache
            if id(cache) not in room:
                limit = None if cache is None else cache.max_bytes
                room[id(cache)] = float("inf") if limit is None else limit - sum(map(self._size, held))
            room[id(cache)] -= self._size(shard)
            if room[id(cache)] < 0:
                return  # it is fetched on access, or when another shard is done
            self._waiting.popleft()
            pool.submit(part.shards.open, number)  # errors are raised where the shard is used

    def _size(self, shard: int) -> int:
        part, number = self._dataset._fetcher.shard(shard)
        return part.shards.manifest.shards[number].size or 0

    def _cached(self, shard: int) -> bool:
        part, number = self._dataset._fetcher.shard(shard)
        return part.shards.options.cache is not None and not is_local(part.shards.url(number))

    def _retire(self, shard: int) -> None:
        part, number = self._dataset._fetcher.shard(shard)
        part.shards.retire(number)


def _is_tracked(part: Part) -> bool:
    return part.shards.options.cache is not None or len(part.numbers) > part.shards.max_open
