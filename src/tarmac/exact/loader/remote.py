"""Fetch the bytes of remote samples before they are needed, in large pieces, apart from the decoding threads.

The order of an epoch is known, so nothing is guessed. While batches are built, the shards of later ones are opened and
the bytes that they need are fetched, each byte once if the spool holds the windows of the order.

    request ── shards opened ── rows cut into pieces ── pieces fetched into the spool ── samples located

A piece is a range of bytes of one shard with samples that this rank will need. It stays in the spool until the space
is needed: pieces whose samples were all used are dropped first, then those of earlier epochs, then those that were not
used for the longest time. If the spool cannot hold the windows, each piece is a single sample, because the rest of a
larger one would be dropped before its use. A sample that could not be fetched is not located: the builder reads it from
its shard, and so raises the error that it would raise without a spool.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tarmac.errors import TarmacError, TarmacWarning
from tarmac.exact.dataset import Dataset
from tarmac.exact.indexed import IndexedShard, coalesce
from tarmac.exact.loader.budget import window_bytes
from tarmac.exact.loader.located import Located, Packed, pack
from tarmac.exact.loader.spool import Spool
from tarmac.exact.loader.stats import Stats
from tarmac.exact.order.epochs import Request
from tarmac.exact.order.exact import ExactOrder
from tarmac.exact.order.mixture import EpochOrder
from tarmac.limits import KIB, MIB
from tarmac.runtime.types import Integers

PIECE = 2 * MIB
"""Largest piece, unless a sample is larger, ..."""
EDGES = 8
"""... and the number of pieces of each stream for which the spool has room: a window begins and ends inside of one."""
GAP = 64 * KIB
"""Bytes between two samples up to which they are fetched by one request."""
SPARSE = 4
"""Ratio of the range of a sample to its bytes from which it is not fetched ahead, as with hard links."""
REQUESTS, OPENINGS = 24, 64
"""Pieces that are fetched at the same time, and shards that are opened: that takes several small requests each."""
HORIZON, HORIZON_SAMPLES = 32, 2048
"""Batches that are planned ahead, and the samples that these hold at least."""
OPEN = 4096
"""Shards whose indexes are kept, besides those in use."""


@dataclass(eq=False, slots=True)
class _Shard:
    """A remote shard, and the piece of each row that this rank needs in the epoch."""

    number: int
    opening: Future[IndexedShard]
    batches: int = 0
    """Batches in flight that need it."""
    planned: int = -1
    """The epoch for which its rows were cut into pieces."""
    pieces: dict[int, _Piece] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether it could not be opened; wait until that is known."""
        return self.opening.cancelled() or self.opening.exception() is not None


@dataclass(eq=False, slots=True)
class _Piece:
    """A range of bytes of a shard, and its extent in the spool."""

    shard: _Shard
    rows: list[int]
    start: int
    stop: int
    left: int | None = 1
    """Uses in the rest of the epoch; None if unknown, as in a mixture, which may repeat samples."""
    epoch: int = -1
    """The last epoch in which a batch needed it."""
    batches: int = 0
    """Batches in flight that need it."""
    offset: int | None = None
    arrival: Future[bool] | None = None


@dataclass(eq=False, slots=True)
class _Batch:
    """A request, and where its samples are."""

    request: Request
    rows: list[tuple[_Shard, int] | None]
    """Shard and row of each sample; None for those of local shards."""
    pieces: list[_Piece | None] = field(default_factory=list)
    packed: Packed | None = None


class Remote:
    """What a loader has fetched of remote shards without a cache, and will need next."""

    def __init__(self, dataset: Dataset[Any], order: EpochOrder, spool: Spool, *, packed: bool) -> None:
        self._fetcher, self._order, self._spool, self._packed = dataset._fetcher, order, spool, packed
        self._window = window_bytes(dataset, order)
        orders = (order,) if isinstance(order, ExactOrder) else order.orders
        self._longest = min(PIECE, spool.limit // (EDGES * sum(each.streams for each in orders)))
        self._shards: OrderedDict[int, _Shard] = OrderedDict()  # the most recently used last
        self._idle: OrderedDict[_Piece, None] = OrderedDict()  # the first to be dropped first
        self._waiting: deque[_Batch] = deque()  # for their shards to open, or for room in the spool
        self._planned: deque[_Batch] = deque()
        self._delivered: dict[tuple[int, int], _Batch] = {}
        self._first: Request | None = None
        self._warned = False
        self.stats = Stats()

    def fetching(self, requests: Iterator[Request]) -> Generator[Request, None, None]:
        """Yield the requests when their bytes have arrived, and fetch those of later ones meanwhile."""
        pool = ThreadPoolExecutor(REQUESTS, thread_name_prefix="tarmac-fetch")
        openings = ThreadPoolExecutor(OPENINGS, thread_name_prefix="tarmac-fetch-open")
        self._first = None
        try:
            while True:
                self._look_ahead(requests, pool, openings)
                if not self._planned and not self._waiting:
                    return
                yield self._deliver(pool)
        finally:
            openings.shutdown(wait=True, cancel_futures=True)
            pool.shutdown(wait=True, cancel_futures=True)
            self._abandon()

    def batch_done(self, request: Request) -> None:
        """Release what a batch holds in the spool."""
        batch = self._delivered.pop((request.epoch, request.first), None)
        if batch is not None:
            self._release(batch)

    # Plan

    def _look_ahead(
        self, requests: Iterator[Request], pool: ThreadPoolExecutor, openings: ThreadPoolExecutor
    ) -> None:
        """Open the shards of later batches, and fetch the pieces of those whose shards are open."""
        ahead = sum(batch.request.size for batch in (*self._planned, *self._waiting))
        while len(self._planned) + len(self._waiting) < HORIZON or ahead < HORIZON_SAMPLES:
            request = next(requests, None)
            if request is None:
                break
            ahead += request.size
            self._waiting.append(self._begin(request, openings))
        while self._waiting and all(row is None or row[0].opening.done() for row in self._waiting[0].rows):
            if not self._plan(self._waiting[0], pool):
                break
            self._planned.append(self._waiting.popleft())

    def _begin(self, request: Request, pool: ThreadPoolExecutor) -> _Batch:
        """Look up the samples of a request, and start to open their shards."""
        self._first = self._first or request
        indices = self._order.at(request.epoch, request.positions)
        numbers = self._fetcher.shard_numbers(indices).tolist()
        rows = [
            (self._shard(number, pool), self._fetcher.locate(index)[2]) if self._is_remote(number) else None
            for number, index in zip(numbers, indices.tolist(), strict=True)
        ]
        for row in rows:
            if row is not None:
                row[0].batches += 1
        self._close_unused()
        return _Batch(request, rows)

    def _shard(self, number: int, pool: ThreadPoolExecutor) -> _Shard:
        shard = self._shards.get(number)
        if shard is None:
            part, inner = self._fetcher.shard(number)
            shard = self._shards[number] = _Shard(number, pool.submit(part.shards.open, inner))
        self._shards.move_to_end(number)
        return shard

    def _is_remote(self, number: int) -> bool:
        part, inner = self._fetcher.shard(number)
        return part.shards.is_fetched(inner)

    def _close_unused(self) -> None:
        """Close the shards that were not used for the longest time, if there are many."""
        for number, shard in list(self._shards.items())[: len(self._shards) - OPEN]:
            if not shard.batches and not any(piece.arrival for piece in shard.pieces.values()):
                del self._shards[number]
                part, inner = self._fetcher.shard(number)
                part.shards.retire(inner)

    def _plan(self, batch: _Batch, pool: ThreadPoolExecutor, *, partially: bool = False) -> bool:
        """Fetch the missing pieces of a batch; return whether there is room for all.

        With `partially`, pieces that are needed later make room, and those without room are left out.
        """
        pieces: list[_Piece | None] = []
        for row in batch.rows:
            piece = None if row is None else self._piece(*row, batch.request)
            epoch = batch.request.epoch
            if piece is not None and piece.arrival is None and not self._fetch(piece, pool, epoch, partially):
                if not partially:
                    self._make_idle(_leave(pieces))
                    return False
                piece = None
            if piece is not None:
                piece.batches, piece.epoch = piece.batches + 1, epoch
                self._idle.pop(piece, None)
            pieces.append(piece)
        batch.pieces = pieces
        return True

    def _piece(self, shard: _Shard, row: int, request: Request) -> _Piece | None:
        """Return the piece that holds a row; None if it cannot be fetched ahead."""
        if shard.failed:
            return None
        if shard.planned != request.epoch and self._window // request.stride <= self._spool.limit:
            self._cut(shard, request)
        piece = shard.pieces.get(row)
        if piece is None:  # a single sample; the row may have been dropped, or be used a second time
            piece = next(_cut(shard, np.array([row]), 0), None)
        return piece

    def _cut(self, shard: _Shard, request: Request) -> None:
        """Cut the rows that this rank needs in the rest of the epoch into pieces, except those in the spool."""
        shard.planned = request.epoch
        rows, repeated = self._needed(shard, request)
        known = {row for row, piece in shard.pieces.items() if piece.arrival is not None}
        missing = [row for row in rows.tolist() if row not in known]
        for piece in _cut(shard, np.array(missing, np.int64), self._longest):
            shard.pieces.update(dict.fromkeys(piece.rows, piece))
        uses = Counter(shard.pieces[row] for row in rows.tolist() if row in shard.pieces)
        for piece in set(shard.pieces.values()):
            piece.left = None if repeated else uses[piece]

    def _needed(self, shard: _Shard, request: Request) -> tuple[Integers, bool]:
        """Return the rows of a shard that this rank needs in the rest of the epoch, and whether they may repeat."""
        samples, repeated = self._fetcher.samples_of(shard.number), True
        if isinstance(self._order, ExactOrder) and self._first is not None:
            positions = self._order.position_of(request.epoch, samples)
            start = self._first.first if self._first.epoch == request.epoch else 0
            mine = (positions >= start) & ((positions - request.first) % request.stride == 0)
            samples, repeated = samples[mine], False
        return self._fetcher.rows_of(shard.number, samples), repeated

    # Fetch

    def _fetch(self, piece: _Piece, pool: ThreadPoolExecutor, epoch: int, make_room: bool) -> bool:
        """Start to fetch a piece; return whether there is room for it, `make_room` by dropping others.

        Pieces that no batch of this epoch has needed yet always make room: they were fetched in an earlier one.
        """
        size = piece.stop - piece.start
        if size > self._spool.limit:
            return False
        while (offset := self._spool.allocate(size)) is None:
            victim = next(iter(self._idle), None)
            if victim is None or (victim.left and victim.epoch == epoch and not make_room):
                return False
            self._drop(victim)
        piece.shard.pieces.update(dict.fromkeys(piece.rows, piece))  # a plan that fails is tried again
        piece.offset = offset
        piece.arrival = pool.submit(self._arrive, piece, offset)
        self.stats.requests += 1
        self.stats.fetched += size
        return True

    def _arrive(self, piece: _Piece, offset: int) -> bool:
        """Fetch a piece in a thread; return whether that succeeded."""
        shard = piece.shard.opening.result()
        try:
            data = shard.read_range(piece.start, piece.stop)
            shard.check_names(np.array(piece.rows), data, piece.start)
        except TarmacError:
            return False  # it is raised again where the sample is read from its shard
        try:
            self._spool.write(offset, data)
        except OSError as error:
            if not self._warned:
                self._warned = True
                what = (
                    f"the temporary file for remote samples: {error.strerror}; they are fetched one by one."
                )
                warnings.warn(what, TarmacWarning, stacklevel=2)
            return False
        return True

    def _drop(self, piece: _Piece) -> None:
        """Remove a piece from the spool."""
        self._idle.pop(piece, None)
        if piece.offset is not None:
            self._spool.free(piece.offset)
        for row in piece.rows:
            if piece.shard.pieces.get(row) is piece:
                del piece.shard.pieces[row]

    # Deliver

    def _deliver(self, pool: ThreadPoolExecutor) -> Request:
        """Wait for the next batch, and return its request with the locations of its samples."""
        began = time.perf_counter()
        if self._planned:
            batch = self._planned.popleft()
        else:
            batch = self._waiting.popleft()
            self._plan(batch, pool, partially=True)  # waits for its shards
        locations = [_locate(row, piece) for row, piece in zip(batch.rows, batch.pieces, strict=True)]
        self.stats.fetch += time.perf_counter() - began
        request = batch.request
        self._delivered[request.epoch, request.first] = batch
        if not any(locations):
            return request
        if not self._packed:
            return request._replace(located=locations)
        batch.packed = pack(locations, self._spool)
        return request._replace(located=batch.packed)

    def _release(self, batch: _Batch) -> None:
        """Release the pieces of a delivered batch; those without further use are dropped first."""
        if batch.packed is not None:
            self._spool.free(batch.packed.offset)
        for piece in batch.pieces:
            if piece is not None and piece.left is not None:
                piece.left = max(piece.left - 1, 0)
        self._make_idle(_leave(batch.pieces))
        for row in batch.rows:
            if row is not None:
                row[0].batches -= 1

    def _make_idle(self, pieces: Iterable[_Piece]) -> None:
        for piece in pieces:
            self._idle[piece] = None
            self._idle.move_to_end(piece, last=piece.left is None or piece.left > 0)

    def _abandon(self) -> None:
        """Forget what was planned, and what did not arrive."""
        for batch in (*self._planned, *self._waiting, *self._delivered.values()):
            self._release(batch)
        self._planned.clear()
        self._waiting.clear()
        self._delivered.clear()
        for piece in list(self._idle):
            if not _arrived(piece):
                self._drop(piece)
        for number, shard in list(self._shards.items()):
            shard.planned = -1
            if shard.failed:
                del self._shards[number]


def _leave(pieces: Iterable[_Piece | None]) -> list[_Piece]:
    """Release pieces from one batch; return those that no other batch needs."""
    idle = []
    for piece in pieces:
        if piece is not None:
            piece.batches -= 1
            if not piece.batches:
                idle.append(piece)
    return idle


def _cut(shard: _Shard, rows: Integers, longest: int) -> Iterator[_Piece]:
    """Cut rows of a shard into pieces; leave out rows whose bytes are far apart."""
    begins, ends = shard.opening.result().extents(rows)
    sizes = shard.opening.result().sidecar.bytes_of(rows)
    compact = ends - begins <= SPARSE * sizes + GAP
    rows, begins, ends = rows[compact], begins[compact], ends[compact]
    for start, stop, numbers in coalesce(begins.tolist(), ends.tolist(), GAP, longest):
        if stop > start:
            yield _Piece(shard, rows[numbers].tolist(), start, stop, left=1)


def _arrived(piece: _Piece) -> bool:
    """Wait for a piece, and return whether it is in the spool."""
    arrival = piece.arrival
    return arrival is not None and not arrival.cancelled() and arrival.result()


def _locate(row: tuple[_Shard, int] | None, piece: _Piece | None) -> Located | None:
    """Wait for a piece, and return where a sample is in it; None if it could not be fetched."""
    if row is None or piece is None or not _arrived(piece):
        return None
    assert piece.offset is not None
    shard, moved = piece.shard.opening.result(), piece.offset - piece.start
    members = [(name, start + moved, size, digest) for name, start, size, digest in shard.members(row[1])]
    return Located(shard.sidecar.key(row[1]), shard.url, members)
