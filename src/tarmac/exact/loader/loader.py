"""The training loop's end: batches of an exact epoch, by threads and processes, resumable anywhere."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from tarmac.errors import ErrorBudgetExceeded
from tarmac.exact.dataset import Dataset
from tarmac.exact.loader.lookahead import LookAhead
from tarmac.exact.loader.maker import BadSample, BatchMaker, Result
from tarmac.exact.loader.processes import STALL, Processes
from tarmac.exact.loader.stats import Stats
from tarmac.exact.loader.walk import EpochWalk, Request
from tarmac.exact.mix import Mix
from tarmac.exact.order.epochs import Tail

__all__ = ["Loader"]

AHEAD = 2
"""Batches begun before they are asked for, for each process."""


class Loader(EpochWalk):
    """Batches for training: every sample exactly once an epoch, the same number of steps on every rank.

    >>> loader = Loader(dataset, batch_size=64, seed=1)
    >>> for images, labels in loader: ...
    >>> state = loader.state_dict()      # JSON; load it on any number of ranks, threads and processes

    `batch_size` is per rank. `rank` and `world` come from torch.distributed or the environment unless given,
    when an iteration begins.
    `threads` work on the samples of a batch (default: one per core; 0 for none), in each of `processes`
    (default 0: in this process). `tail` says what becomes of the last samples that do not fill a batch on
    every rank: "drop", "pad" (begin the epoch again), or "short". So many `bad` samples may be replaced by
    their neighbours when a step raises; `loader.bad_samples` lists them. `collate` makes a batch of a list
    of items. A worker process that sends nothing for `stall` seconds, or that the system has stopped, is an
    error.

    Each iteration is an epoch from its start, and the next one after an epoch that was finished. One that is
    abandoned is followed by the same epoch, so that looking at a batch loses nothing; `state_dict()` says
    where it stopped until another begins. In the epoch of a state that was loaded, iterations begin there.
    A loop that leaves epochs unfinished says `set_epoch(n)`, or it has the same batches each time.
    """

    def __init__(
        self,
        dataset: Dataset | Mix,
        batch_size: int,
        *,
        seed: int | str = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        processes: int = 0,
        tail: Tail = "drop",
        collate: Callable[[list[Any]], Any] | None = None,
        bad: int = 0,
        streams: int = 64,
        window: int = 16_384,
        ahead: int = AHEAD,
        start_method: str | None = None,
        stall: float = STALL,
    ) -> None:
        for name, value, least in (
            ("threads", threads or 0, 0),
            ("processes", processes, 0),
            ("bad", bad, 0),
            ("ahead", ahead, 1),
        ):
            if value < least:
                raise ValueError(f"{name} must be {least} or more, got {value}")
        if not stall > 0:
            raise ValueError(f"stall must be more than 0 seconds, got {stall}")
        super().__init__(
            dataset,
            batch_size,
            seed=seed,
            shuffle=shuffle,
            rank=rank,
            world_size=world_size,
            tail=tail,
            streams=streams,
            window=window,
        )
        self._threads = usable_cores() if threads is None else threads
        self._ahead = ahead
        self._maker = BatchMaker(dataset, self.order, seed=seed, collate=collate, bad=bad)
        self._processes = Processes(self._maker, processes, self._threads, start_method, stall)
        self._look_ahead = LookAhead(self._maker.together, self.order)
        self._stats = Stats()
        self.bad_samples: list[BadSample] = []

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go where a state was saved; one that belongs to other data or another order is refused."""
        super().load_state_dict(state)
        if self._maker.seed != self._state.seed:
            self.close()  # workers have the order of the other seed
            self._maker.seed, self._maker.order = self._state.seed, self.order
            self._look_ahead = LookAhead(self._maker.together, self.order)

    def stats(self) -> dict[str, Any]:
        """Where the time went since the loader was made, with a verdict in one line."""
        return self._stats.as_dict()

    def __iter__(self) -> Iterator[Any]:
        with self._iteration() as iteration:
            fetching = self._look_ahead.fetching(self._requests(iteration))
            with closing(fetching) as requests, closing(self._results(requests)) as results:
                while True:
                    began = time.perf_counter()
                    result = next(results, None)
                    arrived = time.perf_counter()
                    if result is None:
                        break
                    self._account(result, arrived - began)
                    self._look_ahead.batch_done(result.request)
                    self._advance(iteration)
                    yield result.batch
                    del result  # the batch belongs to the caller alone
                    self._stats.consuming += time.perf_counter() - arrived
            self._complete(iteration)

    def _account(self, result: Result, waited: float) -> None:
        result.stats.waiting = waited
        self._stats += result.stats
        self.bad_samples += result.bad
        bad = len({(sample.url, sample.key) for sample in self.bad_samples}) if result.bad else 0
        if bad > self._maker.bad:
            worst = self.bad_samples[-1]
            raise ErrorBudgetExceeded(
                f"{bad} samples could not be used, {self._maker.bad} are allowed; the last: {worst.error}",
                url=worst.url,
                key=worst.key,
            )

    def _results(self, requests: Iterator[Request]) -> Generator[Result, None, None]:
        if self._processes:
            return self._processes.results(requests, self._ahead)
        return in_order(self._maker, requests, self._threads, self._ahead)

    def close(self) -> None:
        """End the worker processes; iterating again starts new ones."""
        self._processes.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    maker: BatchMaker, requests: Iterator[Request], threads: int, ahead: int
) -> Generator[Result, None, None]:
    """Make batches in this process, by threads if there are any, a few ahead of their use."""
    if not threads:
        for request in requests:
            yield maker.begin(request)()
        return
    pending: deque[Callable[[], Result]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tarmac-loader")
    try:
        for request in requests:
            pending.append(maker.begin(request, pool, threads))
            if len(pending) > ahead:
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
