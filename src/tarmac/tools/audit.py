"""Audit the order of an epoch: what a rank reads at a step, when a sample is read, whether each is read once.

The answers are those of a `Loader` with the same options, computed by the same functions. Only the index is
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from tarmac.display import html_table, visible
from tarmac.errors import UsageError
from tarmac.exact.dataset import Dataset
from tarmac.exact.mix import Mix
from tarmac.exact.order.epochs import Tail, check_rank, request_at, steps_left
from tarmac.exact.order.mixture import EpochOrder
from tarmac.indexing.manifest import Manifest
from tarmac.runtime.types import Integers
from tarmac.storage.urls import Shards
from tarmac.tools.options import Access, AccessArgs, bundle, verb
from tarmac.tools.plan import open_indexed
from tarmac.tools.select import Select

_MOMENTS = 5
"""The number of moments of an epoch at which open shards are counted."""
_CHUNK = 1 << 14
"""Positions that are computed together."""
_EXAMPLES = 10


class AuditArgs(AccessArgs, total=False):
    """The shared keyword arguments of `audit`, which apply to shards and manifests."""

    progress: bool | None
    """Show a progress bar while shards are indexed; by default on terminals and in notebooks."""


class ReadSample(NamedTuple):
    """A sample in a batch."""

    step: int
    rank: int
    position: int
    key: str


class Occurrence(NamedTuple):
    """When a sample is read; `step` is None if no rank reads it: it is dropped, or precedes the start."""

    epoch: int
    position: int
    step: int | None = None
    rank: int | None = None
    slot: int | None = None
    """The index inside the batch."""


@dataclass(frozen=True)
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
    """Samples that are repeated to fill the last batch."""
    streams: int
    window: int
    open_shards: int
    """The number of shards that a rank reads at a time: the maximum at some moments of the epoch."""
    fingerprint: str
    to_dict = asdict

    def __str__(self) -> str:
        return "\n".join(f"{name.replace('_', ' '):<12} {value}" for name, value in self.to_dict().items())


@dataclass(frozen=True)
class Verification:
    """How often samples come in all steps of all ranks."""

    ok: bool
    """Whether every sample is read as often as expected."""
    samples: int
    read: int
    """Samples that ranks read, not counting padding."""
    skipped: int
    """Samples before the start position."""
    dropped: int
    padded: int
    steps: tuple[int, ...]
    """Steps of each rank."""
    repeated: int
    missing: int
    examples: tuple[str, ...]
    """Keys of some samples that are repeated or missing."""
    to_dict = asdict

    def __str__(self) -> str:
        examples = ", ".join(map(visible, self.examples))
        wrong = f"WRONG: {self.repeated} samples are repeated, {self.missing} are missing: {examples}"
        counts = {
            "precede the position": self.skipped,
            "are dropped at the end": self.dropped,
            "are repeated to fill the last batch": self.padded,
        }
        return "\n".join(
            [
                f"{self.read} of {self.samples} samples are read exactly once" if self.ok else wrong,
                *(f"{count} {what}" for what, count in counts.items() if count),
                f"steps of each rank: {', '.join(map(str, sorted(set(self.steps))))}",
            ]
        )


@verb(AuditArgs, Access)
def audit(
    source: Shards | Manifest | Dataset | Mix,
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
    **options: Unpack[AuditArgs],
) -> EpochAudit:
    """Return an audit of the epoch that a `Loader` with these options reads.

    `source` is a dataset, a mix, a manifest or shards. `position` is that of a saved state; steps count from
    there.
    """
    dataset = source
    if not isinstance(dataset, Dataset | Mix):
        access = bundle(Access, options)
        inputs = access.inputs(dataset)
        dataset = open_indexed(inputs, Select(where=where), access, progress=options.get("progress")).dataset
    elif where is not None:
        if isinstance(dataset, Mix):
            raise UsageError("`where` selects from a dataset: apply it before mixing.")
        dataset = dataset.where(where)
    check_rank(world_size, 0)
    for name, value, least in (("batch_size", batch_size, 1), ("epoch", epoch, 0)):
        if value < least:
            raise UsageError(f"expected at least {least}, got {value}.", field=name)
    shuffling: dict[str, Any] = {"seed": seed, "shuffle": shuffle, "streams": streams, "window": window}
    steps_left(0, position, batch_size * world_size, tail)  # checks its arguments
    return EpochAudit(
        dataset, dataset._order(**shuffling), batch_size, world_size, epoch, position, tail, shuffling
    )


@dataclass(frozen=True, repr=False)
class EpochAudit:
    """An epoch to inspect and verify."""

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

    @property
    def _ends(self) -> tuple[int, int, int]:
        """Return the positions at which reading begins and ends, and how many are read again as padding."""
        samples, end = self.order.samples, self.position + self.steps * self._global_batch
        padded = max(end - samples, 0) if self.steps and self.tail == "pad" else 0
        return min(self.position, samples), min(end, samples), padded

    @cached_property
    def _everything(self) -> Dataset:
        """All samples, by the numbers that the order gives them."""
        return self.dataset._concatenated if isinstance(self.dataset, Mix) else self.dataset

    @property
    def _parts(self) -> list[tuple[Dataset, int]]:
        """Return each dataset, and how many of its samples an epoch takes."""
        if isinstance(self.dataset, Mix):
            return list(zip(self.dataset.datasets, self.dataset.counts, strict=True))
        return [(self.dataset, len(self.dataset))]

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
        check_rank(self.world_size, rank or 0)
        for each in range(self.world_size) if rank is None else (rank,):
            positions = self._positions(step, each)
            keys = self._everything.keys(self.order.at(self.epoch, positions))
            yield from map(partial(ReadSample, step, each), positions.tolist(), keys)

    def _positions(self, step: int, rank: int) -> Integers:
        start, samples = self.position + step * self._global_batch, self.order.samples
        batch: dict[str, Any] = {"batch_size": self.batch_size, "world_size": self.world_size}
        return request_at(self.epoch, samples, start, rank=rank, tail=self.tail, **batch).positions

    def key(self, key: str, epochs: int = 1) -> list[Occurrence]:
        """Return when the samples with this key are read, in this epoch and the following ones."""
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
        everything, samples = self._everything, self.order.samples
        _, last, padded = self._ends
        return EpochSummary(
            samples=samples,
            shards=len(everything.lengths),
            bytes=sum(int(everything.sizes(numbers).sum()) for numbers in _chunks(len(everything))),
            steps=self.steps,
            dropped=samples - last,
            padded=padded,
            streams=self.shuffling["streams"],
            window=self.shuffling["window"],
            open_shards=self._open_shards(),
            fingerprint=self.dataset.fingerprint,
        )

    def verify(self) -> Verification:
        """Count how often each sample is read, over all steps of all ranks.

        This takes four bytes of memory for each sample.
        """
        samples, (first, last, padded) = self.order.samples, self._ends
        times, read = np.zeros(samples, np.int16), np.zeros(self.world_size, np.int64)
        for step in range(self.steps):
            for rank in range(self.world_size):
                positions = self._positions(step, rank)
                np.add.at(times, positions, 1)
                read[rank] += len(positions)
        np.subtract.at(times, np.arange(padded) % samples, 1)
        times[:first] += 1
        times[last:] += 1
        missing, repeated = self._outside(self._counts(times))
        fresh = int(read.sum()) - padded
        return Verification(
            ok=first + fresh + samples - last == samples and not len(missing) and not len(repeated),
            samples=samples,
            read=fresh,
            skipped=first,
            dropped=samples - last,
            padded=padded,
            steps=tuple((-(-read // self.batch_size)).tolist()),
            repeated=len(repeated),
            missing=len(missing),
            examples=tuple(self._everything.keys([*repeated[:_EXAMPLES], *missing[:_EXAMPLES]])),
        )

    def _counts(self, times: NDArray[np.int16]) -> NDArray[np.int16]:
        """Return how often each sample comes, from how often each position comes."""
        counts = np.zeros(len(self._everything), np.int16)
        for positions in _chunks(self.order.samples):
            np.add.at(counts, self.order.at(self.epoch, positions), times[positions])
        return counts

    def _outside(self, counts: NDArray[np.int16]) -> tuple[Integers, Integers]:
        """Return the samples that are read too rarely, and those that are read too often.

        An epoch of a mix continues where the last one stopped. A sample is read once in each iteration over its
        dataset that is inside the epoch, and may be read in the two that overlap its ends.
        """
        lengths = np.array([len(dataset) for dataset, _ in self._parts])
        taken = np.array([taken for _, taken in self._parts])
        begin, end, some = self.epoch * taken, (self.epoch + 1) * taken, np.maximum(lengths, 1)
        least, most = np.maximum(end // some - -(-begin // some), 0), -(-end // some) - begin // some
        return (
            np.flatnonzero(counts < np.repeat(least, lengths)),
            np.flatnonzero(counts > np.repeat(most, lengths)),
        )

    def _open_shards(self) -> int:
        """Count the shards in the windows that a rank reads from, at some moments of the epoch."""
        counts = np.zeros(_MOMENTS, np.int64)
        for dataset, taken in self._parts:
            order = dataset._order(**self.shuffling)
            for moment in range(_MOMENTS if taken else 0):
                drawn = self.epoch * taken + taken * (2 * moment + 1) // (2 * _MOMENTS)
                epoch, position = divmod(drawn, order.samples)
                begin = position - position % order.streams
                turn = np.arange(begin, min(begin + order.streams, order.samples), self.world_size)
                starts, _, sizes, _ = order.windows(epoch, turn)
                windows = [start + np.arange(size) for start, size in zip(starts, sizes, strict=True)]
                # Streams are pieces of one sequence, and so may their windows be: a shard counts once.
                numbers = order.on_line(epoch, np.concatenate(windows))
                counts[moment] += len(np.unique(dataset._fetcher.shard_numbers(numbers)))
        return int(counts.max())


def _chunks(stop: int) -> Iterator[Integers]:
    return (np.arange(begin, min(begin + _CHUNK, stop)) for begin in range(0, stop, _CHUNK))
