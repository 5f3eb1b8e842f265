"""Remote shards through a cache: fetch what comes next, give up first what is done.

The order of an epoch is known, so nothing has to be guessed: while a batch is in work, the shards of the
batches after it are downloaded as far as the cache has room, and a shard whose last sample has come is the
first to make room for others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tarmac.exact.dataset import Dataset
from tarmac.exact.epoch_order import EpochOrder
from tarmac.exact.loader.walk import Request
from tarmac.storage import Cache, is_local

__all__ = ["LookAhead"]

HORIZON = 32
"""Batches for which shards are fetched before they are needed."""
DOWNLOADS = 4
"""Shards downloaded at a time."""


class LookAhead:
    """Which cached shards of a dataset are needed soon, and which no more in this epoch."""

    def __init__(self, dataset: Dataset, order: EpochOrder) -> None:
        self._dataset, self._order = dataset, order
        self._wanted = any(part.shards.opening.cache is not None for part in dataset.parts)
        self._epoch = -1
        self._last: dict[int, int | None] = {}  # of each shard in use, where its last sample comes
        self._waiting: deque[int] = deque()  # shards to be fetched when there is room

    def fetching(self, requests: Iterator[Request], horizon: int = HORIZON) -> Generator[Request, None, None]:
        """Pass on the requests, downloading the shards of those that come after them."""
        if not self._wanted:
            yield from requests
            return
        ahead: deque[Request] = deque()
        pool = ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="tarmac-fetch")
        try:
            for request in requests:
                ahead.append(request)
                self._waiting.extend(self._begin(request))
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
        """Let go of the shards of which this batch, all before it being done, has had the last sample."""
        if not self._wanted:
            return
        self._begin(request)
        here = request.first + request.stride * (request.size - 1)
        for segment, last in list(self._last.items()):
            if last is not None and last <= here:
                del self._last[segment]
                self._retire(segment)

    def _begin(self, request: Request) -> list[int]:
        """Take note of the shards of a batch; return those that are new."""
        if request.epoch != self._epoch:
            for segment in self._last:
                self._retire(segment)
            self._epoch, self._last = request.epoch, {}
        indices = self._order.at(request.epoch, request.positions)
        found = np.unique(self._dataset.segments_of(indices)).tolist()
        new = [segment for segment in found if segment not in self._last and self._cached(segment)]
        for segment in new:
            self._last[segment] = self._order.last_position(request.epoch, segment)
        return new

    def _fetch(self, pool: ThreadPoolExecutor) -> None:
        """Begin to download what is waiting, as far as there is room for it."""
        held = set(self._last) - set(self._waiting)
        room: dict[int, float] = {}
        while self._waiting:
            segment = self._waiting[0]
            part, number = self._dataset.shard_of(segment)
            cache = part.shards.opening.cache
            if id(cache) not in room:
                room[id(cache)] = _room(cache, sum(map(self._size, held)))
            room[id(cache)] -= self._size(segment)
            if room[id(cache)] < 0:
                return  # it is fetched when it is used, or when another is done
            self._waiting.popleft()
            pool.submit(part.shards.open, number)  # what goes wrong is raised where the shard is used

    def _size(self, segment: int) -> int:
        part, number = self._dataset.shard_of(segment)
        return part.shards.manifest.shards[number].size or 0

    def _cached(self, segment: int) -> bool:
        part, number = self._dataset.shard_of(segment)
        return part.shards.opening.cache is not None and not is_local(part.shards.url(number))

    def _retire(self, segment: int) -> None:
        part, number = self._dataset.shard_of(segment)
        part.shards.let_go(number)
        if part.shards.opening.cache is not None:
            part.shards.opening.cache.retire(part.shards.url(number))


def _room(cache: Cache | None, held: int) -> float:
    return float("inf") if cache is None or cache.max_bytes is None else cache.max_bytes - held
