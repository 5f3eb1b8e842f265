"""Samplers for map-style datasets: orders of indices that stay near each other, so that few shards are open.

They give the sequences of the wids library for the same seeds. An epoch is a pure function of the seed and
the number of the epoch; the number goes up by one when a sampler was run to its end, or is set.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

from tarmac.runtime.worker_info import WorkerInfo, current_worker_info

__all__ = [
    "ChunkedSampler",
    "DistributedChunkedSampler",
    "DistributedLocalSampler",
    "ShardListSampler",
    "ShardedSampler",
    "intersect_range",
    "intersect_ranges",
    "iterate_ranges",
    "lengths_to_ranges",
]

Range = tuple[int, int]
"""From the first index up to, and without, the last."""

_EPOCH_STEP = 1289738273  # part of the sequences that wids gives


def lengths_to_ranges(lengths: Iterable[int]) -> list[Range]:
    """Lay lengths end to end."""
    ranges, start = [], 0
    for length in lengths:
        ranges.append((start, start + length))
        start += length
    return ranges


def intersect_range(a: Range, b: Range) -> Range | None:
    """Return what two ranges share, None if that is nothing."""
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low < high else None


def intersect_ranges(rangelist: Iterable[Range], r: Range) -> list[Range]:
    """Return what each of several ranges shares with one, where that is something."""
    return [shared for shared in (intersect_range(one, r) for one in rangelist) if shared is not None]


def iterate_ranges(
    ranges: Sequence[Range], rng: random.Random, indexshuffle: bool = True, shardshuffle: bool = True
) -> Iterator[int]:
    """Go through ranges one after the other, shuffling their order, and the indices in each."""
    order = list(range(len(ranges)))
    if shardshuffle:
        rng.shuffle(order)
    for number in order:
        indices = list(range(*ranges[number]))
        if indexshuffle:
            rng.shuffle(indices)
        yield from indices


class _RangeSampler:
    """Some ranges of indices, one after the other; the first epoch keeps their order unless told not to."""

    def __init__(self, ranges: list[Range], seed: int, shuffle: bool, shufflefirst: bool) -> None:
        self.ranges = ranges
        self.seed, self.shuffle, self.shufflefirst = seed, shuffle, shufflefirst
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(self.seed + _EPOCH_STEP * self.epoch)
        shardshuffle = self.shuffle and (self.shufflefirst or self.epoch > 0)
        yield from iterate_ranges(self.ranges, rng, indexshuffle=self.shuffle, shardshuffle=shardshuffle)
        self.epoch += 1

    def __len__(self) -> int:
        return sum(high - low for low, high in self.ranges)


class ShardListSampler(_RangeSampler):
    """Shard after shard in a random order, the samples of each in a random order.

    `dataset.lengths` says how many samples each shard has, or `lengths` does.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        lengths: Iterable[int] | None = None,
        seed: int = 0,
        shufflefirst: bool = False,
    ) -> None:
        found = dataset.lengths if lengths is None else lengths
        super().__init__(lengths_to_ranges([int(length) for length in found]), seed, True, shufflefirst)  # noqa: FBT003


ShardedSampler = ShardListSampler


class ChunkedSampler(_RangeSampler):
    """Chunks of `chunksize` neighbours in a random order, each shuffled.

    `num_samples` is how many samples from the first, or a pair: from which up to which. The length is that
    of what comes; `dslength_per_replica` states another.
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        dslength_per_replica: int = -1,
        num_samples: int | tuple[int, int] | None = None,
        chunksize: int = 2000,
        seed: int = 0,
        shuffle: bool = True,
        shufflefirst: bool = False,
    ) -> None:
        low, high = _bounds(num_samples, len(dataset))
        if chunksize < 1:
            raise ValueError(f"chunksize= is a whole number from 1 on, not {chunksize}")
        ranges = [(start, min(start + chunksize, high)) for start in range(low, high, chunksize)]
        super().__init__(ranges, seed, shuffle, shufflefirst)
        self.dslength_per_replica = dslength_per_replica if dslength_per_replica > 0 else super().__len__()

    def __len__(self) -> int:
        return self.dslength_per_replica


def DistributedChunkedSampler(  # noqa: N802 (their name)
    dataset: Sized,
    *,
    num_replicas: int | None = None,
    num_samples: int | None = None,
    rank: int | None = None,
    shuffle: bool = True,
    shufflefirst: bool = False,
    seed: int = 0,
    drop_last: bool | None = None,
    chunksize: int = 1_000_000,
) -> ChunkedSampler:
    """Return a `ChunkedSampler` over the part of the dataset that belongs to this rank.

    Each rank has one contiguous part and so opens few shards. The last ones may have fewer samples; with
    `drop_last` all have the same number and the rest is left out. Rank and number of ranks are those of the
    process unless given.
    """
    place = _place(rank, num_replicas)
    total = _bounds(num_samples, len(dataset))[1]
    share = total // place.world_size if drop_last else -(-total // place.world_size)
    bounds = (min(place.rank * share, total), min((place.rank + 1) * share, total))
    return ChunkedSampler(
        dataset,
        num_samples=bounds,
        chunksize=chunksize,
        seed=seed,
        shuffle=shuffle,
        shufflefirst=shufflefirst,
    )


class DistributedLocalSampler:
    """The order of torch's `DistributedSampler`, of which each rank has a contiguous piece.

    Every rank gets the same number: the first indices come again at the end, or with `drop_last` the last
    are left out.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        place = _place(rank, num_replicas)
        self.dataset, self.rank, self.num_replicas = dataset, place.rank, place.world_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        count = len(dataset)
        self.num_samples = count // place.world_size if drop_last else -(-count // place.world_size)
        self.total_size = self.num_samples * place.world_size

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = self._order()
        first = self.rank * self.num_samples
        return (order[place % len(order)] for place in range(first, first + self.num_samples))

    def _order(self) -> Sequence[int]:
        count = len(self.dataset)
        if not self.shuffle:
            return range(count)
        import torch

        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        return torch.randperm(count, generator=generator).tolist()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self.num_samples


def _place(rank: int | None, world_size: int | None) -> WorkerInfo:
    """Rank and number of ranks: as given, 0 included, else those of this process."""
    here = current_worker_info() if rank is None or world_size is None else WorkerInfo()
    return WorkerInfo(
        here.rank if rank is None else rank, here.world_size if world_size is None else world_size
    )


def _bounds(num_samples: int | tuple[int, int] | None, length: int) -> Range:
    if num_samples is None:
        return 0, length
    low, high = num_samples if isinstance(num_samples, Sequence) else (0, operator.index(num_samples))
    if not 0 <= low <= high <= length:
        raise ValueError(f"num_samples={num_samples}: the dataset has the indices from 0 to {length - 1}")
    return low, high
