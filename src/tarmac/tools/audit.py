"""Audit the order of an epoch: what a rank reads at a step, when a sample comes, whether each comes once.

The answers are those of a `Loader` with the same options, computed by the same functions. Only the index is
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tarmac.display import html_table
from tarmac.errors import UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.mix import Mix
from tarmac.exact.order.epochs import Tail, request_at, steps_left
from tarmac.exact.order.exact import ExactOrder
from tarmac.exact.order.mixture import EpochOrder
from tarmac.runtime.types import Integers
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards

_MOMENTS = 5
"""The number of moments of an epoch at which open shards are counted."""
_CHUNK = 1 << 14
"""Positions that are computed together."""
_EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class ReadSample:
    """A sample in a batch."""

    step: int
    rank: int
    position: int
    key: str


@dataclass(frozen=True, slots=True)
class Occurrence:
    """When a sample comes; `step` is None if no rank reads it: it is dropped, or came before the start."""

    epoch: int
    position: int
    step: int | None = None
    rank: int | None = None
    slot: int | None = None
    """The index inside the batch."""


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """An epoch in numbers."""

    samples: int
    shards: int
    bytes: int
    """Payload of all samples of the dataset."""
    steps: int
    """Steps of each rank."""
    dropped: int
    """Samples at the end that do not fill a batch on every rank."""
    padded: int
    """Samples that come again to fill the last batch."""
    streams: int
    window: int
    open_shards: int
    """The number of shards that a rank reads at a time: the maximum at some moments of the epoch."""
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of counting every sample of every step of every rank."""

    samples: int
    read: int
    """Samples that ranks read, not counting padding."""
    skipped: int
    """Samples before the start position."""
    dropped: int
    padded: int
    steps: tuple[int, ...]
    """Steps of each rank."""
    repeated: int = 0
    """Samples that come more often than they should."""
    missing: int = 0
    """Samples that come less often than they should."""
    examples: tuple[str, ...] = ()
    """Keys of some of those."""

    @property
    def ok(self) -> bool:
        """Return whether every sample comes as often as it should."""
        complete = self.skipped + self.read + self.dropped == self.samples
        return complete and not self.repeated and not self.missing

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, for JSON."""
        return asdict(self) | {"ok": self.ok}


def audit(
    source: Shards | Dataset | Mix,
    *,
    batch_size: int,
    world_size: int = 1,
    seed: int | str = 0,
    epoch: int = 0,
    position: int = 0,
    streams: int = 64,
    window: int = 16_384,
    tail: Tail = "drop",
    shuffle: bool = True,
    where: str | None = None,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> EpochAudit:
    """Return an audit of the epoch that a `Loader` with these options reads.

    `source` is a dataset, a mix, a manifest or shards. `position` is that of a saved state; steps count from
    there.
    """
    dataset = source if isinstance(source, Dataset | Mix) else Dataset(source, storage=storage)
    if where is not None:
        if isinstance(dataset, Mix):
            raise UsageError("`where` selects from a dataset: apply it before mixing.")
        dataset = dataset.where(where)
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("world_size", world_size, 1),
        ("epoch", epoch, 0),
    ):
        if value < least:
            raise UsageError(f"expected at least {least}, got {value}.", field=name)
    shuffling: dict[str, Any] = {"seed": seed, "shuffle": shuffle, "streams": streams, "window": window}
    try:
        order = dataset._order(**shuffling)
        steps_left(0, position, batch_size * world_size, tail)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    return EpochAudit(dataset, order, batch_size, world_size, epoch, position, tail, shuffling)


@dataclass(frozen=True, repr=False)
class EpochAudit:
    """Questions about an epoch."""

    dataset: Dataset | Mix
    order: EpochOrder
    batch_size: int
    world_size: int
    epoch: int
    position: int
    tail: Tail
    shuffling: dict[str, Any]
    """The options of the order."""

    @property
    def steps(self) -> int:
        """Return the number of steps of each rank, from the position on."""
        return steps_left(self.order.samples, self.position, self._global_batch, self.tail)

    @property
    def _global_batch(self) -> int:
        return self.batch_size * self.world_size

    @cached_property
    def _everything(self) -> Dataset:
        """All samples, by the numbers that the order gives them."""
        return self.dataset._concatenated if isinstance(self.dataset, Mix) else self.dataset

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self._facts().items())
        return f"<EpochAudit: {facts}>"

    def _repr_html_(self) -> str:
        return html_table("EpochAudit", self._facts())

    def _facts(self) -> dict[str, object]:
        names = ("epoch", "position", "steps", "batch_size", "world_size", "tail")
        return (
            {"samples": self.order.samples} | {name: getattr(self, name) for name in names} | self.shuffling
        )

    def step(self, step: int, rank: int | None = None) -> Iterator[ReadSample]:
        """Yield what a rank reads at a step, or all ranks one after the other."""
        if not 0 <= step < self.steps:
            raise UsageError(f"expected 0 to {self.steps - 1}, got {step}.", field="step")
        if rank is not None and not 0 <= rank < self.world_size:
            raise UsageError(f"expected 0 to {self.world_size - 1}, got {rank}.", field="rank")
        for each in range(self.world_size) if rank is None else (rank,):
            positions = self._positions(step, each)
            keys = self._everything.keys(self.order.at(self.epoch, positions))
            for position, key in zip(positions.tolist(), keys, strict=True):
                yield ReadSample(step, each, position, key)

    def _positions(self, step: int, rank: int) -> Integers:
        return request_at(
            self.epoch,
            self.order.samples,
            self.position + step * self._global_batch,
            batch_size=self.batch_size,
            rank=rank,
            world_size=self.world_size,
            tail=self.tail,
        ).positions

    def key(self, key: str, epochs: int = 1) -> list[Occurrence]:
        """Return when the samples with this key come, in this epoch and the following ones."""
        numbers = [number for number, each in enumerate(self._everything.keys()) if each == key]
        if not numbers:
            raise UsageError(
                f"no sample has the key {key!r}.", field="key", hint="tarmac show lists the keys."
            )
        return [
            occurrence
            for epoch in range(self.epoch, self.epoch + epochs)
            for position in sorted(p for number in numbers for p in self.order.positions_of(epoch, number))
            for occurrence in self._occurrences(epoch, position)
        ]

    def _occurrences(self, epoch: int, position: int) -> list[Occurrence]:
        samples, batch = self.order.samples, self._global_batch
        start = self.position if epoch == self.epoch else 0
        end = start + steps_left(samples, start, batch, self.tail) * batch
        result = []
        # A padded last batch continues at the beginning, as if the epoch followed itself.
        for unrolled in range(position, end if self.tail == "pad" else min(end, samples), samples):
            if unrolled >= start:
                step, inside = divmod(unrolled - start, batch)
                rank = unrolled % self.world_size
                result.append(Occurrence(epoch, position, step, rank, inside // self.world_size))
        return result or [Occurrence(epoch, position)]

    def summary(self) -> EpochSummary:
        """Return the epoch in numbers."""
        beyond = self.position + self.steps * self._global_batch - self.order.samples
        everything = self._everything
        return EpochSummary(
            samples=self.order.samples,
            shards=len(everything.lengths),
            bytes=sum(int(sizes.sum()) for sizes in map(everything.sizes, _chunks(len(everything)))),
            steps=self.steps,
            dropped=max(-beyond, 0),
            padded=max(beyond, 0) if self.steps and self.tail == "pad" else 0,
            streams=self.shuffling["streams"],
            window=self.shuffling["window"],
            open_shards=self._open_shards(),
            fingerprint=self.dataset.fingerprint,
        )

    def verify(self) -> Verification:
        """Count how often every sample comes, by going through all steps of all ranks.

        This takes two bytes of memory for each sample.
        """
        samples, counts = self.order.samples, np.zeros(len(self._everything), np.uint16)
        read, padded = np.zeros(self.world_size, np.int64), 0
        first = min(self.position, samples)
        last = min(self.position + self.steps * self._global_batch, samples)
        for positions in (*_chunks(first), *_chunks(samples, last)):
            self._count(counts, positions)
        for step in range(self.steps):
            start = self.position + step * self._global_batch
            fresh = max(min(samples - start, self._global_batch), 0)
            for rank in range(self.world_size):
                positions = self._positions(step, rank)
                read[rank] += len(positions)
                again = len(positions) - len(range((rank - start) % self.world_size, fresh, self.world_size))
                padded += again
                self._count(counts, positions[: len(positions) - again])
        few, many = self._outside(counts)
        examples = np.concatenate([many[:_EXAMPLES], few[:_EXAMPLES]])
        return Verification(
            samples=samples,
            read=int(read.sum()) - padded,
            skipped=first,
            dropped=samples - last,
            padded=padded,
            steps=tuple((-(-read // self.batch_size)).tolist()),
            repeated=len(many),
            missing=len(few),
            examples=tuple(self._everything.keys(examples)),
        )

    def _count(self, counts: NDArray[np.uint16], positions: Integers) -> None:
        numbers = self.order.at(self.epoch, positions)
        np.add.at(counts, numbers[(numbers >= 0) & (numbers < len(counts))], np.uint16(1))

    @property
    def _parts(self) -> list[tuple[Dataset, int]]:
        """Return each dataset, and how many of its samples an epoch takes."""
        if isinstance(self.dataset, Mix):
            return list(zip(self.dataset.datasets, self.dataset.counts, strict=True))
        return [(self.dataset, len(self.dataset))]

    def _outside(self, counts: NDArray[np.uint16]) -> tuple[Integers, Integers]:
        """Return the samples that come too seldom, and those that come too often.

        An epoch of a mix continues where the last one stopped. A sample comes once in each iteration over its
        dataset that lies inside the epoch, and may come in the two that lie there partly.
        """
        few, many, base = [], [], 0
        for dataset, taken in self._parts:
            length, first, end = len(dataset), self.epoch * taken, (self.epoch + 1) * taken
            least = max(end // length - -(-first // length), 0) if taken else 0
            most = -(-end // length) - first // length if taken else 0
            some = counts[base : base + length]
            few.append(base + np.flatnonzero(some < least))
            many.append(base + np.flatnonzero(some > most))
            base += length
        return np.concatenate(few), np.concatenate(many)

    def _open_shards(self) -> int:
        """Count the shards in the windows that a rank reads from, at some moments of the epoch."""
        counts = np.zeros(_MOMENTS, np.int64)
        for dataset, taken in self._parts:
            if not taken:
                continue
            order = dataset._order(**self.shuffling)
            for moment in range(_MOMENTS):
                drawn = self.epoch * taken + taken * (2 * moment + 1) // (2 * _MOMENTS)
                windows = _windows_at(order, *divmod(drawn, order.samples), self.world_size)
                # Streams are pieces of one sequence, and so may their windows be: a shard counts once.
                shards = [np.unique(dataset._fetcher.shard_numbers(numbers)) for numbers in windows]
                counts[moment] += len(np.unique(np.concatenate(shards)))
        return int(counts.max())


def _chunks(stop: int, start: int = 0) -> Iterator[Integers]:
    for begin in range(start, stop, _CHUNK):
        yield np.arange(begin, min(begin + _CHUNK, stop))


def _windows_at(order: ExactOrder, epoch: int, position: int, world_size: int) -> Iterator[Integers]:
    """Yield the samples of the window of each stream of rank 0 at a position."""
    begin = position - position % order.streams
    turn = np.arange(begin, min(begin + order.streams, order.samples), world_size)
    starts, _, sizes, _ = order.windows(epoch, turn)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        yield order.on_line(epoch, np.arange(start, start + size))
