"""Batches of an exact epoch, built by threads and processes, resumable at any step."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from typing import Any, Generic

from tarmac.arguments import check_count
from tarmac.errors import UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.loader.budget import spool_limit
from tarmac.exact.loader.builder import BadSample, BatchBuilder, Result, split_last_step
from tarmac.exact.loader.cursor import EpochCursor, explain_torch_arguments
from tarmac.exact.loader.lookahead import LookAhead
from tarmac.exact.loader.processes import STALL, Processes
from tarmac.exact.loader.remote import Remote
from tarmac.exact.loader.spool import Spool
from tarmac.exact.loader.stats import Stats
from tarmac.exact.loader.targets import Framework, To, as_target, converted
from tarmac.exact.mix import Mix
from tarmac.exact.order.epochs import Request, Tail
from tarmac.exact.types import Batch_co, T_co
from tarmac.runtime.budget import ErrorBudget
from tarmac.runtime.cores import usable_cores
from tarmac.runtime.lookahead import PER_WORKER, look_ahead


class Loader(EpochCursor, Generic[Batch_co]):
    """Batches for training: every sample exactly once per epoch, the same number of steps on every rank.

    >>> loader = Loader(dataset, batch_size=64, seed=1)
    >>> for images, labels in loader: ...
    >>> state = loader.state_dict()      # JSON; load it with any world size, number of threads and processes

    `batch_size` is per rank. `rank` and `world_size` default to those of torch.distributed or the environment
    when an iteration starts. Any world size works, and so does loading a state with another one. A world size
    that divides `streams` is fastest on remote data, because each rank then reads whole streams, and so few
    shards. Changing `streams`, `window` or `seed` changes the order.

    `threads` work on the samples of a batch (default: one per core; 0 for none), in each of `processes`
    worker processes (default 0: in this process). `prefetch` batches per process are prepared ahead. `tail`
    selects what happens to the last samples that do not fill a batch on every rank: "drop", "pad" (fill up
    from the start of the epoch) or "short". Up to `max_bad_samples` samples are replaced with others from
    their window: those for which a step raises, and those whose fields or shapes differ from the first good
    sample of the dataset. `loader.bad_samples` lists them. `collate` turns a list of items into a batch.
    `to="torch"` (or "jax", "tensorflow") makes its arrays tensors; `To` has options such as the device. `pack` packs
    tokens into sequences of that length (see `Tokens.pack`). A worker process that sends nothing for `stall` seconds,
    or that was stopped, is an error.

    What is read from remote shards without a cache is held in a temporary file without a name, of at most 8 GiB or
    `remote_budget` ("8GiB", or a number of bytes). A budget also chooses `streams` and `window` so that no byte has
    to be fetched twice in an epoch.

    Each iteration is an epoch from its start; the next epoch follows one that was finished. An abandoned
    epoch is repeated, so looking at a batch loses nothing; until then, `state_dict()` has the position where
    it stopped. In the epoch of a loaded state, iterations start at that state. A loop that does not finish
    its epochs must call `set_epoch(n)`, or it gets the same batches each time.
    """

    @explain_torch_arguments
    def __init__(
        self,
        dataset: Dataset[T_co] | Mix[T_co],
        batch_size: int,
        *,
        seed: int | str = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        processes: int = 0,
        tail: Tail = "drop",
        collate: Callable[[list[T_co]], Batch_co] | None = None,
        max_bad_samples: int = 0,
        streams: int | None = None,
        window: int | None = None,
        remote_budget: int | str | None = None,
        to: Framework | To | None = None,
        pack: int | None = None,
        prefetch: int = PER_WORKER,
        start_method: str | None = None,
        stall: float = STALL,
    ) -> None:
        check_count("threads", threads or 0, 0)
        check_count("processes", processes, 0)
        check_count("max_bad_samples", max_bad_samples, 0)
        check_count("prefetch", prefetch, 1)
        if collate is not None and not callable(collate):
            raise UsageError(f"expected a function of a list of samples, got {collate!r}.", field="collate")
        if not stall > 0:
            raise UsageError(f"expected a positive number of seconds, got {stall}.", field="stall")
        super().__init__(
            dataset if pack is None else packed(dataset, pack),
            batch_size,
            seed=seed,
            shuffle=shuffle,
            rank=rank,
            world_size=world_size,
            tail=tail,
            streams=streams,
            window=window,
            remote_budget=remote_budget,
        )
        self._threads = usable_cores() if threads is None else threads
        self._prefetch = prefetch
        if collate is None:
            self._samples, collate = split_last_step(self._samples)
        self._builder = BatchBuilder(self._samples, self._order, seed, collate, max_bad_samples)
        self._processes = Processes(self._builder, processes, self._threads, start_method, stall)
        self._look_ahead = LookAhead(self._samples, self._order)
        self._remote: Remote | None = None
        self._spool: Spool | None = None
        self._to = as_target(to)
        self._stats = Stats()
        self.bad_samples: list[BadSample] = []

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; raise if it belongs to other data or another order."""
        super().load_state_dict(state)
        if self._builder.seed != self._state.seed:
            self.close()  # workers have the order of the previous seed
            self._builder.seed, self._builder.order = self._state.seed, self._order
            self._look_ahead = LookAhead(self._samples, self._order)

    def _fetching(self, requests: Iterator[Request]) -> Generator[Request, None, None]:
        """Yield the requests when the remote bytes that they need have arrived."""
        if self._remote is None and any(
            part.shards.is_fetched(number) for part in self._samples._parts for number in part.used
        ):
            self._spool = Spool(spool_limit(self._budget))
            packed = self._processes.count > 0
            self._remote = Remote(self._samples, self._order, self._spool, packed=packed)
        requests = self._look_ahead.fetching(requests)
        return requests if self._remote is None else self._remote.fetching(requests)

    def stats(self) -> dict[str, Any]:
        """Return where the time went since the loader was created; `"verdict"` names the bottleneck."""
        stats = self._stats if self._remote is None else self._stats + self._remote.stats
        return asdict(stats) | {"verdict": stats.verdict()}

    def _facts(self) -> dict[str, str]:
        return super()._facts() | {"threads": str(self._threads), "processes": str(self._processes.count)}

    def __iter__(self) -> Iterator[Batch_co]:
        with self._iteration() as iteration:
            with (
                closing(self._fetching(self._requests(iteration))) as requests,
                closing(self._results(requests)) as results,
            ):
                while True:
                    began = time.perf_counter()
                    result = next(results, None)
                    arrived = time.perf_counter()
                    if result is None:
                        break
                    self._account(result, arrived - began)
                    self._look_ahead.batch_done(result.request)
                    if self._remote is not None:
                        self._remote.batch_done(result.request)
                    self._advance(iteration)
                    yield result.batch
                    del result  # the caller has the only reference to the batch
                    self._stats.consuming += time.perf_counter() - arrived
            self._complete(iteration)

    def _account(self, result: Result, waited: float) -> None:
        result.stats.waiting = waited
        self._stats += result.stats
        self.bad_samples += result.bad
        if result.bad:
            bad, last = len({(one.url, one.key) for one in self.bad_samples}), self.bad_samples[-1]
            budget = ErrorBudget(self._builder.max_bad_samples, "max_bad_samples")
            budget.check(bad, last.error, url=last.url, key=last.key)

    def _results(self, requests: Iterator[Request]) -> Generator[Result, None, None]:
        if self._processes.count:
            results = self._processes.results(requests, self._prefetch, self._spool)
        else:
            results = in_order(self._builder, requests, self._threads, self._prefetch, self._spool)
        return results if self._to is None else converted(results, self._to)

    def close(self) -> None:
        """Terminate the worker processes and drop fetched samples; the next iteration starts new ones."""
        self._processes.close()
        if self._remote is not None:
            self._stats += self._remote.stats
        # An iterator that is still in use keeps the spool open: threads may write to it.
        self._remote = self._spool = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_remote": None, "_spool": None}

    def __enter__(self) -> Loader[Batch_co]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def packed(dataset: Dataset[Any] | Mix[Any], size: int) -> Dataset[Any]:
    """Return the sequences of a dataset of tokens."""
    pack = getattr(dataset, "pack", None)
    if pack is None:
        what = f"expected tokens, got a {type(dataset).__name__}."
        hint = "tarmac.Tokens(DIR); in a Mix, tokens.pack(2048) for each dataset."
        raise UsageError(what, field="pack", hint=hint)
    sequences: Dataset[Any] = pack(size)
    return sequences


def in_order(
    builder: BatchBuilder,
    requests: Iterator[Request],
    threads: int,
    prefetch: int,
    spool: Spool | None = None,
) -> Generator[Result, None, None]:
    """Build batches in this process, with threads if `threads` is positive, `prefetch` batches ahead."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tarmac-loader") if threads else None
    # One more than `prefetch`: the batch that is waited for. Without threads, nothing is built ahead.
    depth = prefetch + 1 if pool else 1
    try:
        # `map` keeps no reference to a yielded batch.
        yield from map(
            operator.call, look_ahead(lambda one: builder.begin(one, pool, threads, spool), requests, depth)
        )
    finally:
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
