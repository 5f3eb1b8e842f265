"""Going through epochs batch by batch: what a loader and a sampler have in common."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tarmac.errors import LoaderError, TarmacWarning
from tarmac.exact.dataset import Dataset
from tarmac.exact.epoch_order import EpochOrder
from tarmac.exact.loader.state import LoaderState
from tarmac.exact.mix import Mix
from tarmac.exact.order.bijection import MAX_SIZE, mix_key
from tarmac.exact.order.epochs import Tail, check_world, first_and_size, steps_left
from tarmac.runtime.agreement import Site
from tarmac.runtime.seeds import make_seed
from tarmac.runtime.worker_info import WorkerInfo, rank_and_world

__all__ = ["EpochWalk", "Iteration", "Request", "seeds_of"]


class Request(NamedTuple):
    """A batch to be made: every `stride`-th position of an epoch from `first` on, beginning again at its end.

    A few numbers whatever the size of the batch, so that asking a worker for it never blocks.
    """

    epoch: int
    first: int
    size: int
    stride: int
    samples: int

    @property
    def positions(self) -> NDArray[np.int64]:
        """The positions, in order."""
        return (self.first + self.stride * np.arange(self.size)) % self.samples


def seeds_of(seed: int | str, epoch: int, positions: NDArray[np.int64]) -> list[int]:
    """For each position what its random numbers start from: the same on any worker, in any batch."""
    return mix_key(make_seed("sample", seed, epoch), positions).tolist()  # type: ignore[no-any-return]


@dataclass(eq=False, slots=True)
class Iteration:
    """One pass through an epoch: where it began, where it is, and for which rank."""

    begun: LoaderState
    state: LoaderState
    place: WorkerInfo
    handed: int = 0
    compared: bool = False


class EpochWalk:
    """Where in which epoch we are, and which batches of this rank come next.

    The rank is looked up when an iteration begins, because torch.distributed may be initialised after the
    loader was made. An iteration keeps the rank that it began with.
    """

    def __init__(
        self,
        dataset: Dataset | Mix,
        batch_size: int,
        *,
        seed: int | str,
        shuffle: bool,
        rank: int | None,
        world_size: int | None,
        tail: Tail,
        streams: int,
        window: int,
    ) -> None:
        if not isinstance(dataset, Dataset | Mix):
            raise ValueError(f"a Dataset or a Mix is needed, got {type(dataset).__name__}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {batch_size}")
        self._given = rank, world_size
        self._place: WorkerInfo | None = None
        self._under_way: Iteration | None = None
        self.dataset, self.batch_size, self.tail = dataset, batch_size, tail
        shards = len(dataset.together.lengths if isinstance(dataset, Mix) else dataset.lengths)
        self._state = LoaderState(
            seed, 0, 0, shuffle, streams, window, len(dataset), shards, dataset.fingerprint, 0
        )
        self._start = self._state  # where an iteration begins: the start of the epoch, or a loaded state
        self._finished = False
        self._site = Site()
        self._longest = 0  # the largest length that anybody was given
        self._find_place()
        self.order = self._new_order()

    def _new_order(self) -> EpochOrder:
        state = self._state
        return EpochOrder(
            self.dataset, seed=state.seed, shuffle=state.shuffle, streams=state.streams, window=state.window
        )

    @property
    def rank(self) -> int:
        """The number of this rank: of the iteration under way, or as it is now."""
        return self._here().rank

    @property
    def world_size(self) -> int:
        """The number of ranks: of the iteration under way, or as it is now."""
        return self._here().world_size

    def _here(self) -> WorkerInfo:
        return self._find_place() if self._under_way is None else self._under_way.place

    def _find_place(self) -> WorkerInfo:
        """Look up rank and world, and check them unless they are those of the last time.

        Where nothing says them, those of the last time hold: in a worker process that this was sent to, and
        when the process group has been destroyed.
        """
        last = (0, 1) if self._place is None else (self._place.rank, self._place.world_size)
        found = last if None not in self._given else rank_and_world() or last
        rank, world_size = (
            now if given is None else given for given, now in zip(self._given, found, strict=True)
        )
        if self._place is None or (rank, world_size) != last:
            check_world(self._state.streams, world_size, rank)
            self._check_that_there_are_batches(world_size)
            self._place, self._longest = WorkerInfo(rank, world_size), 0
        return self._place

    def _check_that_there_are_batches(self, world_size: int) -> None:
        """Refuse an epoch without batches, which a training loop would take for a finished one.

        With tail="short" it is what was asked for: every sample once, and nothing more, of none.
        """
        samples = self._state.samples
        if steps_left(samples, 0, self.batch_size * world_size, self.tail) or self.tail == "short":
            return
        if not samples:
            what = "there are no samples, so an epoch has no batches."
            raise LoaderError(what, hint='another selection; tail="short" accepts an empty one.')
        ranks = "" if world_size == 1 else f" on each of {world_size} ranks"
        fits = f"batch_size={samples // world_size} or less, " if samples >= world_size else ""
        raise LoaderError(
            f"{samples} samples do not fill a batch of {self.batch_size}{ranks}, so an epoch has no batches.",
            hint=f'{fits}tail="pad", or tail="short".',
        )

    def __len__(self) -> int:
        """How many steps the epoch under way has, those from before a state was loaded included.

        It is the same number for every epoch, but for one that was begun with another number of ranks or
        another batch size.
        """
        world_size = self.world_size
        done, position = (0, 0) if self._finished else (self._start.step, self._start.position)
        length = (
            self._steps_left(0, world_size) if done is None else done + self._steps_left(position, world_size)
        )
        self._longest = max(self._longest, length)
        return length

    @property
    def epoch(self) -> int:
        """The number of the epoch that is under way or comes next."""
        return self._state.epoch

    @property
    def position(self) -> int:
        """How many samples of the epoch all ranks together have had."""
        return self._state.position

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of an epoch; a loaded state of this epoch is kept."""
        if epoch == self._state.epoch and not self._finished:
            return
        if not 0 <= epoch * max(self._state.samples, 1) <= MAX_SIZE:
            raise ValueError(f"epochs are numbered from 0, got {epoch}")
        self._go_to(epoch)

    def _go_to(self, epoch: int) -> None:
        self._set_out(replace(self._state, epoch=epoch, position=0, step=0))

    def _set_out(self, start: LoaderState) -> None:
        """Let the next iteration begin at a state; one that is under way counts no more."""
        self._start = self._state = start
        self._finished, self._under_way = False, None

    def state_dict(self) -> dict[str, Any]:
        """Where we are, for JSON: the same on every rank, valid for any number of them."""
        return self._state.as_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go where a state was saved; one that belongs to other data or another order is refused."""
        saved = LoaderState.from_dict(state)
        saved.check(self._state)
        reseeded = saved.seed != self._state.seed
        self._set_out(saved)
        if reseeded:
            self.order = self._new_order()
        before = self._longest
        if 0 < before < len(self):
            warnings.warn(
                f"this epoch has {len(self)} steps, those before the state was saved included; len() was "
                f"{before} before the state was loaded. A trainer that took that for the length ends the "
                "epoch too early: load the state before the trainer gets the loader (docs/exact.md).",
                TarmacWarning,
                stacklevel=3,
            )

    @contextmanager
    def _iteration(self) -> Iterator[Iteration]:
        """Begin an epoch from its start or a loaded state: the next one if all of this one was handed out."""
        place = self._find_place()
        if self._finished:
            self._go_to(self._state.epoch + 1)
        self._compare_ranks(place)
        self._state = self._start
        iteration = self._under_way = Iteration(self._start, self._start, place)
        try:
            yield iteration
        finally:
            if self._under_way is iteration:
                self._under_way = None

    def _compare_ranks(self, place: WorkerInfo) -> None:
        state = self._start
        facts = {
            "samples": f"{state.samples} (fingerprint {state.fingerprint})",
            "seed": str(state.seed),
            "batches": f"{self.batch_size} a rank, tail {self.tail}",
            "order": f"{state.streams} streams, window {state.window}, shuffle {state.shuffle}",
        }
        self._site.check(place, facts, None)

    def _compare_pass(self, iteration: Iteration) -> None:
        if not iteration.compared and self._under_way is iteration:
            iteration.compared = True
            begun = iteration.begun
            self._site.check_pass(iteration.place, {"epoch": begun.epoch, "position": begun.position})

    def _requests(self, iteration: Iteration) -> Iterator[Request]:
        """The batches of this rank from where the iteration began to the end of the epoch."""
        state, place, batch = iteration.begun, iteration.place, self.batch_size
        for step in range(self._steps_left(state.position, place.world_size)):
            first, size = first_and_size(
                state.samples,
                state.position + step * batch * place.world_size,
                batch_size=batch,
                rank=place.rank,
                world_size=place.world_size,
                tail=self.tail,
            )
            if size:  # with a short tail some ranks have no part in the last batch
                yield Request(state.epoch, first, size, place.world_size, state.samples)

    def _advance(self, iteration: Iteration) -> None:
        """One more batch is handed out, on every rank."""
        state = self._after(iteration, 1, iteration.state)
        finished = not self._steps_left(state.position, iteration.place.world_size)
        if iteration.handed or finished:  # one batch alone may be a look at the data, on any rank
            self._compare_pass(iteration)
        iteration.handed += 1
        iteration.state = state
        if self._under_way is iteration:
            self._state, self._finished = state, finished

    def _after(self, iteration: Iteration, batches: int, state: LoaderState) -> LoaderState:
        """The state after so many more batches of an iteration."""
        position = state.position + batches * self.batch_size * iteration.place.world_size
        step = None if state.step is None else state.step + batches
        return replace(state, position=min(position, state.samples), step=step)

    def _steps_left(self, position: int, world_size: int) -> int:
        return steps_left(self._state.samples, position, self.batch_size * world_size, self.tail)

    def _complete(self, iteration: Iteration) -> None:
        """All batches of an iteration were handed out, and somebody asked for one more."""
        self._compare_pass(iteration)
        if self._under_way is iteration:
            self._go_to(iteration.begun.epoch + 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_place": self._here(), "_under_way": None}
