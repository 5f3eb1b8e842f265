"""The position in a sequence of epochs: what `Loader` and `BatchSampler` have in common."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Real
from operator import index
from typing import Any, ParamSpec, SupportsIndex

from tarmac.arguments import check_count
from tarmac.display import html_table
from tarmac.errors import LoaderError, TarmacWarning, UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.loader.budget import STREAMS, WINDOW, order_within, parse_budget
from tarmac.exact.loader.state import LoaderState
from tarmac.exact.mix import Mix
from tarmac.exact.order.bijection import MAX_SIZE, mix_key
from tarmac.exact.order.epochs import Request, Tail, check_rank, request_at, steps_left
from tarmac.exact.order.mixture import EpochOrder
from tarmac.runtime.agreement import Site
from tarmac.runtime.seeds import make_seed
from tarmac.runtime.types import Integers
from tarmac.runtime.worker_info import WorkerInfo, rank_and_world

P = ParamSpec("P")
_TORCH_ARGUMENTS = {
    "num_workers": "processes=n for worker processes, or threads=n.",
    "drop_last": 'tail="drop" (the default), tail="short" or tail="pad".',
    "pin_memory": 'to=tarmac.To("torch", device="cuda"), which copies through pinned memory.',
    "persistent_workers": "leave it out; workers persist until close().",
    "prefetch_factor": "prefetch=n.",
    "collate_fn": "collate=f.",
    "sampler": "shuffle, seed, rank and world_size; or tarmac.BatchSampler with torch's DataLoader.",
    "batch_sampler": "shuffle, seed, rank and world_size; or tarmac.BatchSampler with torch's DataLoader.",
    "generator": "seed=n.",
    "worker_init_fn": "map(f), which runs in the workers.",
    "multiprocessing_context": 'start_method="spawn".',
    "timeout": "stall=seconds.",
    "num_replicas": "world_size=n.",
}


def check_seed(seed: object) -> int | float | str:
    """Return a seed that JSON can hold; raise UsageError for others."""
    if isinstance(seed, str):
        return seed
    if isinstance(seed, SupportsIndex):
        return index(seed)
    if isinstance(seed, Real):
        return float(seed)
    raise UsageError(f"expected a number or a string, got {seed!r}.", field="seed")


def explain_torch_arguments(init: Callable[P, None]) -> Callable[P, None]:
    """Make `__init__` raise a TypeError with a hint for argument names of torch's DataLoader and samplers."""

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in kwargs:
            if name in _TORCH_ARGUMENTS:
                raise TypeError(f"unexpected argument `{name}`. Try: {_TORCH_ARGUMENTS[name]}")
        init(*args, **kwargs)

    return checked


def seeds_of(seed: int | float | str, epoch: int, positions: Integers) -> list[int]:
    """Return the seed of the random steps at each position; it does not depend on worker or batch."""
    return mix_key(make_seed("sample", seed, epoch), positions).tolist()  # type: ignore[no-any-return]


@dataclass(eq=False, slots=True)
class Iteration:
    """One iteration of an epoch: its start, its rank, and how many batches it yielded."""

    start: LoaderState
    worker: WorkerInfo
    yielded: int = 0
    compared: bool = False


class EpochCursor:
    """The current epoch and position, and the batches of this rank from there.

    The rank is looked up when an iteration starts, because torch.distributed may be initialised after the
    loader was created. An iteration keeps the rank with which it started.
    """

    @explain_torch_arguments
    def __init__(
        self,
        dataset: Dataset[Any] | Mix[Any],
        batch_size: int,
        *,
        seed: int | str = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail = "drop",
        streams: int | None = None,
        window: int | None = None,
        remote_budget: int | str | None = None,
    ) -> None:
        if not isinstance(dataset, Dataset | Mix):
            raise UsageError(f"expected a Dataset or a Mix, got {type(dataset).__name__}.", field="dataset")
        if shuffle not in (True, False):
            raise UsageError(f"expected True or False, got {shuffle!r}.", field="shuffle")
        self._requested = (
            None if rank is None else check_count("rank", rank, 0),
            None if world_size is None else check_count("world_size", world_size, 1),
        )
        self._worker: WorkerInfo | None = None
        self._current: Iteration | None = None
        self.dataset: Dataset[Any] | Mix[Any] = dataset
        self.batch_size: int = check_count("batch_size", batch_size, 1)
        self.tail: Tail = tail
        self._samples: Dataset[Any] = dataset._concatenated if isinstance(dataset, Mix) else dataset
        self._budget = None if remote_budget is None else parse_budget(remote_budget)
        streams, window = self._stream_sizes(streams, window)
        if shuffle and self._budget is not None and streams * window < min(batch_size, len(dataset)):
            what = (
                f"`remote_budget` holds {streams * window} samples, fewer than a batch, so that samples stay next to "
                "each other and epochs are hardly shuffled. Try: a larger budget."
            )
            warnings.warn(what, TarmacWarning, stacklevel=5)  # of the caller of Loader
        shards = len(self._samples.lengths)
        self._state = LoaderState(
            check_seed(seed),
            0,
            0,
            bool(shuffle),
            streams,
            window,
            len(dataset),
            shards,
            dataset.fingerprint,
            0,
        )
        self._start = self._state  # where an iteration starts: the start of the epoch, or a loaded state
        self._finished = False
        self._site = Site()
        self._longest = 0  # the largest length that was returned to a caller
        self._find_worker()
        self._order = self._new_order()

    def _stream_sizes(self, streams: int | None, window: int | None) -> tuple[int, int]:
        """Return the given streams and window, those that fit into the budget, or the defaults."""
        if self._budget is None:
            return (
                STREAMS if streams is None else check_count("streams", streams, 1),
                WINDOW if window is None else check_count("window", window, 1),
            )
        for name, value in (("streams", streams), ("window", window)):
            if value is not None:
                raise UsageError("cannot be combined with `remote_budget`, which chooses it.", field=name)
        return order_within(self._budget, self._samples)

    def _new_order(self) -> EpochOrder:
        state = self._state
        return self.dataset._order(
            state.seed, shuffle=state.shuffle, streams=state.streams, window=state.window
        )

    @property
    def rank(self) -> int:
        """The rank of the current iteration, or the rank that the next one would have."""
        return self._active_worker().rank

    @property
    def world_size(self) -> int:
        """The number of ranks of the current iteration, or that the next one would have."""
        return self._active_worker().world_size

    def _active_worker(self) -> WorkerInfo:
        return self._find_worker() if self._current is None else self._current.worker

    def _find_worker(self) -> WorkerInfo:
        """Look up rank and world size, and check them if they changed.

        If the environment has none, the previous values hold: in a worker process that this object was sent
        to, and after the process group was destroyed.
        """
        previous = (0, 1) if self._worker is None else (self._worker.rank, self._worker.world_size)
        detected = previous if None not in self._requested else rank_and_world() or previous
        rank, world_size = (
            actual if requested is None else requested
            for requested, actual in zip(self._requested, detected, strict=True)
        )
        if self._worker is None or (rank, world_size) != previous:
            check_rank(world_size, rank)
            self._check_not_empty(world_size)
            self._worker, self._longest = WorkerInfo(rank, world_size), 0
        return self._worker

    def _check_not_empty(self, world_size: int) -> None:
        """Raise if an epoch has no batches: a training loop would mistake it for a finished epoch.

        With tail="short" an empty dataset is allowed.
        """
        samples = self._state.samples
        if self._steps_left(0, world_size) or self.tail == "short":
            return
        if not samples:
            what = "the dataset has no samples, so an epoch has no batches."
            raise LoaderError(what, hint='a different selection; tail="short" accepts an empty dataset.')
        ranks = "" if world_size == 1 else f" on each of {world_size} ranks"
        fits = f"batch_size={samples // world_size} or less, " if samples >= world_size else ""
        raise LoaderError(
            f"{samples} samples do not fill a batch of {self.batch_size}{ranks}, so an epoch has no batches.",
            hint=f'{fits}tail="pad", or tail="short".',
        )

    def __len__(self) -> int:
        """Return the number of steps of the current epoch, including those before a state was loaded.

        It is the same for every epoch, except for one that started with another world size or batch size.
        """
        length = self._length()
        self._longest = max(self._longest, length)
        return length

    def _length(self) -> int:
        done, position = (0, 0) if self._finished else (self._start.step, self._start.position)
        if done is None:
            return self._steps_left(0, self.world_size)
        return done + self._steps_left(position, self.world_size)

    @property
    def epoch(self) -> int:
        """The number of the current or next epoch."""
        return self._state.epoch

    @property
    def position(self) -> int:
        """The number of samples of the epoch that were yielded, over all ranks."""
        return self._state.position

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        return f"<{type(self).__name__}: {facts}>"

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self._facts())

    def _facts(self) -> dict[str, str]:
        state = self._state
        return {
            "samples": str(state.samples),
            "batch_size": str(self.batch_size),
            "rank": f"{self.rank} of {self.world_size}",
            "epoch": str(state.epoch),
            "step": f"{'unknown' if state.step is None else state.step} of {self._length()}",
            "shuffle": f"seed {state.seed!r}" if state.shuffle else "no",
            "tail": self.tail,
        }

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; a loaded state of the same epoch is kept."""
        epoch = check_count("epoch", epoch, 0)
        if epoch == self._state.epoch and not self._finished:
            return
        if not epoch * max(self._state.samples, 1) <= MAX_SIZE:
            raise UsageError(
                f"expected an epoch with fewer than {MAX_SIZE} samples before it, got {epoch}.", field="epoch"
            )
        self._go_to(epoch)

    def _go_to(self, epoch: int) -> None:
        self._start_at(replace(self._state, epoch=epoch, position=0, step=0))

    def _start_at(self, start: LoaderState) -> None:
        """Start the next iteration at a state; an unfinished iteration no longer counts."""
        self._start = self._state = start
        self._finished, self._current = False, None

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a JSON object: the same on every rank, valid for any world size."""
        return self._state.as_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; raise if it belongs to different data or a different order."""
        saved = LoaderState.from_dict(state)
        saved.check(self._state)
        reseeded = saved.seed != self._state.seed
        self._start_at(saved)
        if reseeded:
            self._order = self._new_order()
        previous = self._longest
        if previous not in (0, len(self)):
            warnings.warn(
                f"this epoch has {len(self)} steps, including those before the state was saved; len() was "
                f"{previous} before the state was loaded. A trainer that keeps one of these lengths ends this "
                "epoch or the next ones too early: load the state before the trainer gets the loader, and let it "
                "get the loader again for each epoch (docs/exact.md).",
                TarmacWarning,
                stacklevel=3,
            )

    @contextmanager
    def _iteration(self) -> Iterator[Iteration]:
        """Start an iteration at the start of the epoch or at a loaded state; skip a finished epoch."""
        worker = self._find_worker()
        if self._finished:
            self._go_to(self._state.epoch + 1)
        self._compare_ranks(worker)
        self._state = self._start
        iteration = self._current = Iteration(self._start, worker)
        try:
            yield iteration
        finally:
            if self._current is iteration:
                self._current = None

    def _compare_ranks(self, worker: WorkerInfo) -> None:
        state = self._start
        facts = {
            "samples": f"{state.samples} (fingerprint {state.fingerprint})",
            "seed": str(state.seed),
            "batches": f"{self.batch_size} a rank, tail {self.tail}",
            "order": f"{state.streams} streams, window {state.window}, shuffle {state.shuffle}",
        }
        self._site.check(worker, facts)

    def _compare_epoch(self, iteration: Iteration) -> None:
        if not iteration.compared and self._current is iteration:
            iteration.compared = True
            start = iteration.start
            self._site.check_epoch(iteration.worker, {"epoch": start.epoch, "position": start.position})

    def _requests(self, iteration: Iteration) -> Iterator[Request]:
        """Yield the batches of this rank from the start of the iteration to the end of the epoch."""
        state, worker, batch = iteration.start, iteration.worker, self.batch_size
        for step in range(self._steps_left(state.position, worker.world_size)):
            request = request_at(
                state.epoch,
                state.samples,
                state.position + step * batch * worker.world_size,
                batch_size=batch,
                rank=worker.rank,
                world_size=worker.world_size,
                tail=self.tail,
            )
            if request.size:  # with tail="short" some ranks have no samples in the last step
                yield request

    def _advance(self, iteration: Iteration) -> None:
        """Count one more batch, on every rank."""
        state = self._after(iteration, iteration.yielded + 1)
        finished = not self._steps_left(state.position, iteration.worker.world_size)
        if iteration.yielded or finished:  # a single batch may be a look at the data, on one rank only
            self._compare_epoch(iteration)
        if finished:
            self._site.complete()
        iteration.yielded += 1
        if self._current is iteration:
            self._state, self._finished = state, finished

    def _after(self, iteration: Iteration, batches: int) -> LoaderState:
        """Return the state after some batches of an iteration."""
        state = iteration.start
        position = state.position + batches * self.batch_size * iteration.worker.world_size
        step = None if state.step is None else state.step + batches
        return replace(state, position=min(position, state.samples), step=step)

    def _steps_left(self, position: int, world_size: int) -> int:
        return steps_left(self._state.samples, position, self.batch_size * world_size, self.tail)

    def _complete(self, iteration: Iteration) -> None:
        """End an iteration of which all batches were yielded and another was requested."""
        self._compare_epoch(iteration)
        self._site.complete()
        if self._current is iteration:
            self._go_to(iteration.start.epoch + 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_worker": self._active_worker(), "_current": None}
