"""Going through epochs batch by batch: what a loader and a sampler have in common."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tarmac.errors import LoaderError, TarmacWarning
from tarmac.loader.state import LoaderState
from tarmac.order.agreement import Site
from tarmac.order.bijection import MAX_SIZE, mix_key
from tarmac.order.epochs import Tail, check_world, first_and_size, steps_left
from tarmac.order.seeds import make_seed
from tarmac.order.workers import Place, current_place
from tarmac.pipeline.dataset import Dataset
from tarmac.pipeline.epoch_order import EpochOrder
from tarmac.pipeline.mix import Mix

__all__ = ["EpochWalk", "Request", "seeds_of"]


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


class EpochWalk:
    """Where in which epoch we are, and which batches of this rank come next."""

    def __init__(
        self,
        dataset: Dataset | Mix,
        batch_size: int,
        *,
        seed: int | str,
        shuffle: bool,
        rank: int | None,
        world: int | None,
        tail: Tail,
        streams: int,
        window: int,
    ) -> None:
        if not isinstance(dataset, Dataset | Mix):
            raise ValueError(f"a Dataset or a Mix is needed, got {type(dataset).__name__}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, got {batch_size}")
        place = current_place()
        self.rank = place.rank if rank is None else rank
        self.world = place.world if world is None else world
        check_world(streams, self.world, self.rank)
        self.dataset, self.batch_size, self.tail = dataset, batch_size, tail
        shards = len(dataset.together.lengths if isinstance(dataset, Mix) else dataset.lengths)
        self._state = LoaderState(
            seed, 0, 0, shuffle, streams, window, len(dataset), shards, dataset.fingerprint, 0
        )
        self._check_that_there_are_batches()
        self._finished = False
        self._site = Site()
        self._longest = 0  # the largest length that anybody was given
        self.order = self._new_order()

    def _new_order(self) -> EpochOrder:
        state = self._state
        return EpochOrder(
            self.dataset, seed=state.seed, shuffle=state.shuffle, streams=state.streams, window=state.window
        )

    def _check_that_there_are_batches(self) -> None:
        """Refuse an epoch without batches, which a training loop would take for a finished one.

        With tail="short" it is what was asked for: every sample once, and nothing more, of none.
        """
        samples, world = self._state.samples, self.world
        if steps_left(samples, 0, self.batch_size * world, self.tail) or self.tail == "short":
            return
        if not samples:
            what = "there are no samples, so an epoch has no batches."
            raise LoaderError(what, hint='another selection; tail="short" accepts an empty one.')
        ranks = "" if world == 1 else f" on each of {world} ranks"
        fits = f"batch_size={samples // world} or less, " if samples >= world else ""
        raise LoaderError(
            f"{samples} samples do not fill a batch of {self.batch_size}{ranks}, so an epoch has no batches.",
            hint=f'{fits}tail="pad", or tail="short".',
        )

    def __len__(self) -> int:
        """How many steps the epoch under way has, those from before a state was loaded included.

        It is the same number for every epoch, but for one that was begun with another number of ranks or
        another batch size.
        """
        whole = steps_left(self._state.samples, 0, self.batch_size * self.world, self.tail)
        step = None if self._finished else self._state.step
        length = whole if step is None else step + self._steps_left()
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
        """Go to the beginning of an epoch, unless it is the one under way."""
        if epoch != self._state.epoch:
            if not 0 <= epoch * max(self._state.samples, 1) <= MAX_SIZE:
                raise ValueError(f"epochs are numbered from 0, got {epoch}")
            self._state = replace(self._state, epoch=epoch, position=0, step=0)
            self._finished = False

    def state_dict(self) -> dict[str, Any]:
        """Where we are, for JSON: the same on every rank, valid for any number of them."""
        return self._state.as_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go where a state was saved; one that belongs to other data or another order is refused."""
        saved = LoaderState.from_dict(state)
        saved.check(self._state)
        reseeded = saved.seed != self._state.seed
        self._state, self._finished = saved, False
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

    def _requests(self) -> Iterator[Request]:
        """The batches of this rank from where we are to the end of the epoch."""
        state, batch = self._state, self.batch_size
        for step in range(self._steps_left()):
            first, size = first_and_size(
                state.samples,
                state.position + step * batch * self.world,
                batch_size=batch,
                rank=self.rank,
                world=self.world,
                tail=self.tail,
            )
            if size:  # with a short tail some ranks have no part in the last batch
                yield Request(state.epoch, first, size, self.world, state.samples)

    def _advance(self) -> None:
        """One more batch was handed out, on every rank."""
        position = self._state.position + self.batch_size * self.world
        step = None if self._state.step is None else self._state.step + 1
        self._state = replace(self._state, position=min(position, self._state.samples), step=step)
        self._finished = not self._steps_left()

    def _steps_left(self) -> int:
        state = self._state
        return steps_left(state.samples, state.position, self.batch_size * self.world, self.tail)

    def _begin(self) -> None:
        """Go on to the next epoch if all of this one was handed out, by whoever stops at the last batch."""
        if self._finished:
            self._next_epoch()
        state = self._state
        facts = {
            "samples": f"{state.samples} (fingerprint {state.fingerprint})",
            "seed": str(state.seed),
            "batches": f"{self.batch_size} a rank, tail {self.tail}",
            "order": f"{state.streams} streams, window {state.window}, shuffle {state.shuffle}",
        }
        self._site.check(Place(self.rank, self.world), facts, None)

    def _next_epoch(self) -> None:
        self._state = replace(self._state, epoch=self._state.epoch + 1, position=0, step=0)
        self._finished = False
