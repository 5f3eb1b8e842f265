"""The exact order of an epoch, laid open: what a rank sees at a step, when a sample comes, how well it mixes.

All of it is about what `Loader` does with the same options, worked out by the same functions. Nothing is read
but the index.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tarmac.exact.dataset import Dataset
from tarmac.exact.epoch_order import EpochOrder
from tarmac.exact.mix import Mix
from tarmac.exact.order.epochs import Tail, batch_positions, check_world, steps_left
from tarmac.exact.order.exact import ExactOrder
from tarmac.storage.urls import Shards
from tarmac.tools.audit.quality import shuffle_quality, stream_order

__all__ = ["audit", "Coming", "OrderAudit", "OrderOptions", "Seen", "Summary"]

Integers = NDArray[np.int64]

_MOMENTS = 5
"""At how many moments of an epoch the shards that a rank reads at a time are counted."""


@dataclass(frozen=True, slots=True)
class OrderOptions:
    """The options of a `Loader` that decide which sample comes when, and where in which epoch it starts."""

    batch_size: int
    world_size: int = 1
    seed: int | str = 0
    epoch: int = 0
    position: int = 0
    """Where the state of a loader says that it is; steps count from there."""
    streams: int = 64
    window: int = 16_384
    tail: Tail = "drop"
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"a batch holds at least 1 sample, not {self.batch_size}")
        if self.epoch < 0:
            raise ValueError(f"epochs are counted from 0, there is none with the number {self.epoch}")
        check_world(self.streams, self.world_size, 0)
        self.steps(0)

    @property
    def global_batch(self) -> int:
        """How many samples all ranks together take in a step."""
        return self.batch_size * self.world_size

    def steps(self, samples: int) -> int:
        """How many steps there are from the position on."""
        return steps_left(samples, self.position, self.global_batch, self.tail)


@dataclass(frozen=True, slots=True)
class Seen:
    """A sample in a batch."""

    step: int
    rank: int
    position: int
    key: str


@dataclass(frozen=True, slots=True)
class Coming:
    """When a sample comes; without a step if no rank gets it, as it is left out or came before the start."""

    epoch: int
    position: int
    step: int | None = None
    rank: int | None = None
    place: int | None = None
    """Which of the batch it is, from 0."""


@dataclass(frozen=True, slots=True)
class Summary:
    """An epoch in numbers."""

    samples: int
    shards: int
    steps: int
    """Of each rank."""
    left_out: int
    """Samples at the end that do not fill a batch on every rank."""
    padded: int
    """Samples that come again to fill the last batch."""
    streams: int
    window: int
    shards_at_once: int
    """How many shards a rank reads at a time: the most at some moments of the epoch."""
    fingerprint: str
    quality: float
    """How well it is shuffled; `shuffle_quality` says what that means."""


def audit(source: Shards | Dataset | Mix, options: OrderOptions, *, where: str | None = None) -> OrderAudit:
    """Audit a manifest, shards, a dataset or a mix; `where` chooses some of the samples."""
    dataset = source if isinstance(source, Dataset | Mix) else Dataset(source)
    if where is not None:
        if isinstance(dataset, Mix):
            raise ValueError("where= goes with a dataset; choose from the datasets before they are mixed")
        dataset = dataset.where(where)
    return OrderAudit(dataset, options)


class OrderAudit:
    """Questions about the epoch of a dataset or a mix."""

    def __init__(self, dataset: Dataset | Mix, options: OrderOptions) -> None:
        self.dataset, self.options = dataset, options
        self.order = EpochOrder(
            dataset,
            seed=options.seed,
            shuffle=options.shuffle,
            streams=options.streams,
            window=options.window,
        )
        self.samples = self.order.samples
        self.steps = options.steps(self.samples)

    @cached_property
    def together(self) -> Dataset:
        """All samples, by the numbers that the order gives them."""
        return self.dataset.together if isinstance(self.dataset, Mix) else self.dataset

    def what(self, step: int, rank: int | None = None) -> Iterator[Seen]:
        """Yield what a rank sees at a step, or rank after rank what all of them see."""
        options = self.options
        for each in range(options.world_size) if rank is None else (rank,):
            positions = batch_positions(
                self.samples,
                options.position,
                step,
                batch_size=options.batch_size,
                rank=each,
                world_size=options.world_size,
                tail=options.tail,
            )
            keys = self.together.keys_of(self.order.at(options.epoch, positions))
            for position, key in zip(positions.tolist(), keys, strict=True):
                yield Seen(step, each, position, key)

    def when(self, key: str, epochs: int = 1) -> list[Coming]:
        """Return when the samples with this key come, in this epoch and those after it."""
        numbers = [number for number, found in enumerate(self.together.keys()) if found == key]
        if not numbers:
            raise KeyError(f'none of the {len(self.together)} samples has the key "{key}"')
        first = self.options.epoch
        return [
            coming
            for epoch in range(first, first + epochs)
            for position in sorted(p for number in numbers for p in self.order.positions_of(epoch, number))
            for coming in self._comings(epoch, position)
        ]

    def _comings(self, epoch: int, position: int) -> list[Coming]:
        options, samples = self.options, self.samples
        start = options.position if epoch == options.epoch else 0
        batch, world_size, tail = options.batch_size, options.world_size, options.tail
        end = start + steps_left(samples, start, batch * world_size, tail) * batch * world_size
        found = []
        # A last batch that is filled up goes on at the beginning, as if the epoch followed itself.
        for unrolled in range(position, end if tail == "pad" else min(end, samples), samples):
            if unrolled >= start:
                step, inside = divmod(unrolled - start, batch * world_size)
                found.append(Coming(epoch, position, step, unrolled % world_size, inside // world_size))
        return found or [Coming(epoch, position)]

    def summary(self) -> Summary:
        """Return the epoch in numbers."""
        options = self.options
        beyond = options.position + self.steps * options.global_batch - self.samples
        return Summary(
            samples=self.samples,
            shards=len(self.together.lengths),
            steps=self.steps,
            left_out=max(-beyond, 0),
            padded=max(beyond, 0) if self.steps and options.tail == "pad" else 0,
            streams=options.streams,
            window=options.window,
            shards_at_once=self._shards_at_once(),
            fingerprint=self.dataset.fingerprint,
            quality=self.quality(),
        )

    def quality(self) -> float:
        """Say how well the epoch is shuffled, from 0 to 1."""
        return shuffle_quality(self.places, self.samples, self.options.global_batch)

    def stream_quality(self, buffer: int) -> float:
        """Say how well shuffled shards and a shuffle buffer would do with the same shards."""
        found = self.stream(buffer)
        return shuffle_quality(found.__getitem__, len(found), self.options.global_batch)

    def stream(self, buffer: int) -> Integers:
        """Return the order that shuffled shards and a shuffle buffer would give."""
        if isinstance(self.dataset, Mix):
            raise ValueError("a mix has no stream to compare it with; audit its datasets one by one")
        options = self.options
        return stream_order(
            self.dataset.lengths,
            batch_size=options.batch_size,
            world_size=options.world_size,
            buffer=buffer,
            seed=options.seed,
            epoch=options.epoch,
        )

    def places(self, positions: Integers) -> NDArray[np.float64]:
        """Return where in the dataset the samples at these positions are, as numbers in [0, samples).

        In a mix each dataset takes as much of that as of the epoch, so that an even spread is even here too.
        """
        numbers = self.order.at(self.options.epoch, positions)
        if not isinstance(self.dataset, Mix):
            return numbers.astype(np.float64)
        sizes, counts = [len(one) for one in self.dataset.datasets], self.dataset.counts
        places = np.interp(numbers + 0.5, np.cumsum([0, *sizes]), np.cumsum([0, *counts])) - 0.5
        return np.asarray(places, np.float64)

    def _shards_at_once(self) -> int:
        """Count the shards in the windows that a rank is in, at some moments of the epoch."""
        if isinstance(self.dataset, Mix):
            parts = list(zip(self.dataset.datasets, self.dataset.counts, strict=True))
        else:
            parts = [(self.dataset, len(self.dataset))]
        counts = np.zeros(_MOMENTS, np.int64)
        for dataset, taken in parts:
            if not taken:
                continue
            order = self._order_of(dataset)
            for moment in range(_MOMENTS):
                drawn = self.options.epoch * taken + taken * (2 * moment + 1) // (2 * _MOMENTS)
                counts[moment] += _shards_around(
                    order, *divmod(drawn, order.samples), self.options.world_size
                )
        return int(counts.max())

    def _order_of(self, dataset: Dataset) -> ExactOrder:
        options = self.options
        return ExactOrder(
            dataset.lengths,
            seed=options.seed,
            shuffle=options.shuffle,
            streams=options.streams,
            window=options.window,
        )


def _shards_around(order: ExactOrder, epoch: int, position: int, world_size: int) -> int:
    """Count the shards of the windows of all streams of rank 0 when the epoch has come to a position."""
    begin = position - position % order.streams
    turn = np.arange(begin, min(begin + order.streams, order.samples), world_size)
    starts, _, sizes, _ = order.windows(epoch, turn)
    # Streams follow one another on the line, and so may their windows: a shard counts once.
    shards = [
        np.unique(order.on_line(epoch, np.arange(start, start + size))[0])
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
    return len(np.unique(np.concatenate(shards)))
