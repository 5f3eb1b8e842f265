"""Open the next shards of a list while the current one is read.

A remote store takes some time to answer, so the requests for the next shards are sent in threads before the current
shard ends, and the first bytes of each are read. Small shards need many requests to hide that time and large ones a
single one, so the measure is the distance in bytes from the reader to the end of the last open shard. It grows when
the reader has to wait, and shrinks when connections have to. With a cache, shards are downloaded to it instead, as
far as it has room.

Only stores that allow it (`Store.opens_ahead`) are asked early. A shard that could not be opened early, or waited for
long, is opened again when it is reached: errors are raised there, as without this module.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tarmac.errors import TarmacError
from tarmac.limits import MIB
from tarmac.runtime.lookahead import first_completed, look_ahead
from tarmac.storage import schemes
from tarmac.storage.cache import Cache
from tarmac.storage.local import LocalSource
from tarmac.storage.types import Source, StorageOptions

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")
MIN_DISTANCE, DISTANCE, MAX_DISTANCE = 1 * MIB, 2 * MIB, 32 * MIB
"""Bytes that are open ahead of the reader: at least, at first, and at most ..."""
GROWTH = 4
"""... since it grows and shrinks by this factor."""
MAX_AHEAD = 16
"""The largest number of shards that are open ahead."""
FIRST_BYTES = 1 * MIB
"""Bytes of each of them that are held in memory."""
MAX_IDLE = 10.0
"""Seconds after which a connection that waited is opened again: servers close idle ones."""
CLOSING = 1.0
"""Seconds to wait for pending requests when reading stops early. Later answers are discarded."""


def open_ahead(
    shards: Iterable[T],
    url_of: Callable[[T], str],
    opener: Callable[[str], Source],
    storage: StorageOptions,
    cache: Cache | None = None,
    *,
    early: bool = True,
) -> Generator[tuple[T, Callable[[], Source]], None, None]:
    """Yield each shard with a function that opens it, in order. `opener(url)` opens a shard that is not open yet.

    With `early`, shards are taken from the iterable before they are needed; otherwise, one at a time.
    """
    ahead: _Ahead[T] = _Ahead(opener, storage, cache)
    try:
        for shard in look_ahead(
            lambda item: ahead.add(item, url_of(item)), shards, MAX_AHEAD if early else 1
        ):
            yield shard.item, lambda shard=shard: ahead.open(shard)  # type: ignore[misc]
    finally:
        ahead.close()


class _Begun(NamedTuple):
    """A source that was opened early, and its first bytes."""

    source: Source
    first: deque[bytes]
    complete: bool
    """Whether no more bytes are needed from a connection."""
    opened: float


class _Shard(Generic[T]):
    """A shard that is not read yet."""

    def __init__(self, item: T, url: Any, *, early: bool) -> None:
        self.item, self.url, self.early = item, url, early
        self.future: Future[_Begun | None] | None = None

    @property
    def pending(self) -> bool:
        """Whether a request has no answer yet."""
        return self.future is not None and not self.future.done()

    @property
    def length(self) -> int | None:
        """The size of the shard, if it is known already."""
        begun = None if self.future is None or not self.future.done() else self.future.result()
        return None if begun is None else begun.source.length


class _Ahead(Generic[T]):
    """The shards that follow the current one."""

    def __init__(self, opener: Callable[[str], Source], storage: StorageOptions, cache: Cache | None) -> None:
        self._opener, self._storage, self._cache = opener, storage, cache
        self._shards: deque[_Shard[T]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._started = self._closed = False
        self._distance = DISTANCE
        self._current, self._usual = 0, MAX_DISTANCE  # the size of this shard, and of those not open yet
        self._max_idle = min(MAX_IDLE, storage.idle_timeout / 2, storage.total_timeout / 10)

    def add(self, item: T, url: Any) -> _Shard[T]:
        """Append a shard to those that follow."""
        shard = _Shard(item, url, early=isinstance(url, str) and schemes.opens_ahead(url))
        self._shards.append(shard)
        return shard

    def open(self, shard: _Shard[T]) -> Source:
        """Open a shard, which becomes the current one, or return what was opened early."""
        self._shards.remove(shard)
        following, self._started = self._started, True
        if following and shard.early and (shard.future is None or shard.pending):
            self._distance = min(self._distance * GROWTH, MAX_DISTANCE)
        begun = self._answer(shard)
        source = self._opener(shard.url) if begun is None else begun.source
        self._current = source.length or 0
        self._usual = source.length or self._usual
        if not shard.early or isinstance(source, LocalSource):
            if following:
                self.advance(0)
            return source
        # A program that looks at the first samples needs no other shards.
        quiet = 0 if following else FIRST_BYTES
        return _Stream(source, deque() if begun is None else begun.first, self.advance, quiet)

    def _answer(self, shard: _Shard[T]) -> _Begun | None:
        """Wait until the shard is open; return None if it must be opened now."""
        if shard.future is None or self._process != os.getpid():
            return None  # a forked process has no threads
        begun = first_completed([shard.future]).result()
        shard.future = None
        if begun is None or begun.complete or time.monotonic() - begun.opened <= self._max_idle:
            return begun
        begun.source.close()
        self._distance = max(self._distance // GROWTH, MIN_DISTANCE)
        return None

    def advance(self, left: int) -> None:
        """Open shards early, when the reader has `left` bytes until the end of the current one."""
        if left >= self._distance or self._process != os.getpid():
            return
        for shard in self._shards:
            if shard.future is None and shard.early:
                room = self._room()
                if room < self._usual:
                    return
                shard.future = self._submit(shard.url, room)
            left += (shard.length or self._usual) if shard.early else 0
            if left >= self._distance:
                return

    def _submit(self, url: str, room: int) -> Future[_Begun | None] | None:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(MAX_AHEAD, thread_name_prefix="tarmac-ahead")
        try:
            return self._pool.submit(self._open_early, url, room)
        except RuntimeError:
            return None  # the interpreter is exiting, or the system has no more threads

    def _room(self) -> int:
        """Return the number of bytes that the cache can hold besides the open shards; 0 while that is not known."""
        if self._cache is None or self._cache.max_bytes is None:
            return sys.maxsize
        if any(shard.pending for shard in self._shards):
            return 0
        return self._cache.max_bytes - self._current - sum(shard.length or 0 for shard in self._shards)

    def _open_early(self, url: str, room: int) -> _Begun | None:
        """Open a shard in a thread and read its first bytes; None if that fails."""
        source: Source | None
        try:
            if self._cache is None:
                source = schemes.open_read(url, self._storage)
            else:
                source = self._cache.open_early(url, self._storage, lambda: 0 if self._closed else room)
            return None if source is None else _begin(source)
        except Exception:
            return None  # raised again when the shard is reached

    def close(self) -> None:
        """Close what was opened and is not read, and end the threads."""
        self._closed = True
        if self._pool is None or self._process != os.getpid():
            return
        from concurrent.futures import wait

        futures = [shard.future for shard in self._shards if shard.future is not None]
        self._shards.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)
        running = [future for future in futures if not future.cancelled()]
        wait(running, CLOSING)
        for future in running:
            future.add_done_callback(_discard)


def _begin(source: Source) -> _Begun:
    """Read the first bytes of a stream; a file on disk needs none."""
    first: deque[bytes] = deque()
    left, complete = FIRST_BYTES, isinstance(source, LocalSource)
    try:
        while left and not complete:
            chunk = source.read(left)
            first.append(chunk)
            left -= len(chunk)
            complete = not chunk
    except BaseException:
        source.close()
        raise
    return _Begun(source, first, complete, time.monotonic())


def _discard(future: Future[_Begun | None]) -> None:
    begun = future.result()
    if begun is not None:
        begun.source.close()


class _Stream(Source):
    """A stream whose first bytes may be in memory. It has the next shards opened as its end comes near."""

    def __init__(
        self, source: Source, first: deque[bytes], advance: Callable[[int], None], quiet: int
    ) -> None:
        self._source, self._first, self._advance, self._quiet = source, first, advance, quiet
        self.length, self.version = source.length, source.version
        self._received = 0

    def read(self, size: int, /) -> bytes:
        if self._received >= self._quiet:
            self._advance(0 if self.length is None else self.length - self._received)
        if self._first:
            data = self._first.popleft()
            if len(data) > size:
                self._first.appendleft(data[size:])
                data = data[:size]
        else:
            data = self._source.read(size)
        self._received += len(data)
        return data

    def content(self) -> bytes | None:
        return self._source.content()

    def blame(self, error: TarmacError) -> None:
        self._source.blame(error)

    def close(self) -> None:
        self._first.clear()
        self._source.close()
