"""Order the requests of a unit: hosts in turn, and those that failed again later.

It is a state machine without a clock of its own, so that it can be tested without waiting.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from tarmac.downloading.network.hosts import NEVER, Hosts

FEW = 0.02
"""The share of the rows of a unit that may be left to the end of the run, if they take too long."""
TAIL, SHORTEST_TAIL = 0.03, 0.5
"""For how long a unit waits for them: a share of the time that the others took, and the least in seconds."""
T = TypeVar("T")


@dataclass
class Schedule(Generic[T]):
    """Items that wait for their host, in queues."""

    hosts: Hosts
    patience: float = 60.0
    """Items of a host that must be left alone for longer than this are given up."""

    def __post_init__(self) -> None:
        self._queues: dict[str, deque[T]] = {}
        self._queued = 0
        self._turns: deque[str] = deque()
        """Hosts that may be ready."""
        self._waiting: list[tuple[float, str]] = []
        """Hosts that are ready at a time, as a heap."""
        self._full: set[str] = set()
        """Hosts that are ready when a request ends."""
        self._later: list[tuple[float, int, str, T]] = []
        """Items that are repeated at a time, as a heap."""
        self._numbers = itertools.count()
        self._given_up: deque[T] = deque()

    def add(self, host: str, item: T, *, first: bool = False) -> None:
        """Add an item to the queue of its host."""
        queue = self._queues.get(host)
        if queue is None:
            queue = self._queues[host] = deque()
            self._turns.append(host)
        (queue.appendleft if first else queue.append)(item)
        self._queued += 1

    def add_later(self, host: str, item: T, at: float) -> None:
        """Add an item that is to be repeated, not before a time."""
        heapq.heappush(self._later, (at, next(self._numbers), host, item))

    def take(self, now: float) -> tuple[str, T] | None:
        """Return the next item whose host may get a request now, and its host; None if there is none."""
        while self._later and self._later[0][0] <= now:
            _, _, host, item = heapq.heappop(self._later)
            self.add(host, item)
        while self._waiting and self._waiting[0][0] <= now:
            self._turns.append(heapq.heappop(self._waiting)[1])
        while self._turns:
            host = self._turns.popleft()
            queue = self._queues.get(host)
            if queue is None:
                continue
            if self.hosts.blocked(host, now) > self.patience:
                self._given_up.extend(self._queues.pop(host))
                self._queued -= len(queue)
                continue
            ready = self.hosts.ready_at(host, now)
            if ready == NEVER:
                self._full.add(host)
            elif ready > now:
                heapq.heappush(self._waiting, (ready, host))
            else:
                item = queue.popleft()
                self._queued -= 1
                if queue:
                    self._turns.append(host)
                else:
                    del self._queues[host]
                return host, item
        return None

    def ended(self, host: str) -> None:
        """Note that a request of a host has ended."""
        if host in self._full:
            self._full.discard(host)
            self._turns.append(host)

    def moves(self, now: float) -> bool:
        """Return whether an item waits for a host that answers, and is only asked as seldom as its limits demand."""
        return any(self.hosts.answers(host, now) for host in self._queues)

    def next_time(self) -> float:
        """Return when `take` may return something, unless a request ends before."""
        return min((heap[0][0] for heap in (self._waiting, self._later) if heap), default=NEVER)

    def given_up(self) -> Iterator[T]:
        """Yield the items of hosts that must be left alone for too long, once."""
        while self._given_up:
            yield self._given_up.popleft()

    def drain(self) -> Iterator[T]:
        """Yield all items that still wait, and forget them."""
        yield from self.given_up()
        for queue in self._queues.values():
            yield from queue
        yield from (item for _, _, _, item in sorted(self._later, key=lambda each: each[1]))
        self._queues, self._later, self._waiting, self._queued = {}, [], [], 0
        self._turns.clear()
        self._full.clear()

    def __len__(self) -> int:
        return self._queued + len(self._later) + len(self._given_up)


@dataclass
class Tail:
    """Decide when a unit stops waiting for its last rows, so that slow hosts do not hold up all units."""

    total: int
    began: float
    _since: float | None = None
    """Since when only few rows are left."""

    @property
    def most(self) -> int:
        """Return how many rows are few; of small units none are."""
        return int(FEW * self.total)

    def ends(self, few: bool, now: float) -> float:
        """Return when to stop waiting; NEVER if more than a few rows are left, or some of them will not take long."""
        if not few:
            self._since = None
            return NEVER
        if self._since is None:
            self._since = now
        return self._since + max(TAIL * (self._since - self.began), SHORTEST_TAIL)
