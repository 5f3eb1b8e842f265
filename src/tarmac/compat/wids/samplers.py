"""Samplers for map-style datasets that keep indices close to each other, so that few shards are open.

They return the same sequences as the wids library for the same seeds. The order of an epoch depends only on the seed
and the epoch. The epoch increases by one when a sampler was exhausted, or is set with `set_epoch`.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from tarmac.runtime.worker_info import WorkerInfo, current_worker_info

Range = tuple[int, int]
"""Start and stop, as in `range`."""

_EPOCH_STEP = 1289738273  # as in wids, so that the sequences are the same


def lengths_to_ranges(lengths: Iterable[int]) -> list[Range]:
    """Return consecutive ranges with these lengths."""
    return list(itertools.pairwise(itertools.accumulate(lengths, initial=0)))


def intersect_range(a: Range, b: Range) -> Range | None:
    """Return the intersection of two ranges, or None if it is empty."""
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low < high else None


def intersect_ranges(rangelist: Iterable[Range], r: Range) -> list[Range]:
    """Return the non-empty intersections of several ranges with `r`."""
    return [shared for one in rangelist if (shared := intersect_range(one, r)) is not None]


def iterate_ranges(
    ranges: Sequence[Range], rng: random.Random, indexshuffle: bool = True, shardshuffle: bool = True
) -> Iterator[int]:
    """Yield the indices of ranges one after the other, with a shuffled order of ranges and of indices in each."""
    order = list(range(len(ranges)))
    if shardshuffle:
        rng.shuffle(order)
    for number in order:
        indices = list(range(*ranges[number]))
        if indexshuffle:
            rng.shuffle(indices)
        yield from indices


@dataclass(eq=False, repr=False)
class _RangeSampler:
    """Ranges of indices, one after the other. Epoch 0 keeps the order of ranges unless `shufflefirst` is set."""

    ranges: list[Range]
    seed: int
    shuffle: bool
    shufflefirst: bool
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(self.seed + _EPOCH_STEP * self.epoch)
        shardshuffle = self.shuffle and (self.shufflefirst or self.epoch > 0)
        yield from iterate_ranges(self.ranges, rng, indexshuffle=self.shuffle, shardshuffle=shardshuffle)
        self.epoch += 1

    def __len__(self) -> int:
        return sum(high - low for low, high in self.ranges)


class ShardListSampler(_RangeSampler):
    """Shards in a random order, with the samples of each in a random order.

    The number of samples in each shard is `lengths`, by default `dataset.lengths`.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        lengths: Iterable[int] | None = None,
        seed: int = 0,
        shufflefirst: bool = False,
    ) -> None:
        ranges = lengths_to_ranges(int(n) for n in (dataset.lengths if lengths is None else lengths))
        super().__init__(ranges, seed, shuffle=True, shufflefirst=shufflefirst)


ShardedSampler = ShardListSampler


class ChunkedSampler(_RangeSampler):
    """Chunks of `chunksize` consecutive indices in a random order, each chunk shuffled.

    `num_samples` limits the indices to the first ones, or with a pair to a range. `len()` is the number of indices,
    or `dslength_per_replica` if that is positive.
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
            raise ValueError(f"`chunksize` must be at least 1, got {chunksize}")
        ranges = [(start, min(start + chunksize, high)) for start in range(low, high, chunksize)]
        super().__init__(ranges, seed, shuffle, shufflefirst)
        self.dslength_per_replica: int = (
            dslength_per_replica if dslength_per_replica > 0 else super().__len__()
        )

    def __len__(self) -> int:
        return self.dslength_per_replica


def DistributedChunkedSampler(  # noqa: N802 (the name in wids)
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
    """Return a `ChunkedSampler` over the contiguous part of the dataset that belongs to this rank.

    The last ranks may have fewer samples; with `drop_last`, all have the same number and the rest is left out. `rank`
    and `num_replicas` default to those of the process.
    """
    info = _rank_info(rank, num_replicas)
    total = _bounds(num_samples, len(dataset))[1]
    per_rank = total // info.world_size if drop_last else -(-total // info.world_size)
    return ChunkedSampler(
        dataset,
        num_samples=(min(info.rank * per_rank, total), min((info.rank + 1) * per_rank, total)),
        chunksize=chunksize,
        seed=seed,
        shuffle=shuffle,
        shufflefirst=shufflefirst,
    )


class DistributedLocalSampler:
    """The order of torch's `DistributedSampler`, of which each rank has a contiguous part.

    All ranks have the same number of indices: the first indices are repeated at the end, or with `drop_last` the last
    ones are left out.
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
        info = _rank_info(rank, num_replicas)
        self.dataset = dataset
        self.rank: int = info.rank
        self.num_replicas: int = info.world_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch: int = 0
        total = len(dataset)
        self.num_samples: int = total // info.world_size if drop_last else -(-total // info.world_size)
        self.total_size: int = self.num_samples * info.world_size

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = self._order()
        first = self.rank * self.num_samples
        return (order[position % len(order)] for position in range(first, first + self.num_samples))

    def _order(self) -> Sequence[int]:
        if not self.shuffle:
            return range(len(self.dataset))
        import torch

        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        return torch.randperm(len(self.dataset), generator=generator).tolist()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self.num_samples


def _rank_info(rank: int | None, world_size: int | None) -> WorkerInfo:
    """Return the given rank and number of ranks; those of this process replace None."""
    current = current_worker_info() if rank is None or world_size is None else WorkerInfo()
    return WorkerInfo(
        current.rank if rank is None else rank, current.world_size if world_size is None else world_size
    )


def _bounds(num_samples: int | tuple[int, int] | None, length: int) -> Range:
    if num_samples is None:
        return 0, length
    low, high = num_samples if isinstance(num_samples, Sequence) else (0, operator.index(num_samples))
    if not 0 <= low <= high <= length:
        raise ValueError(f"`num_samples` is out of range: got {num_samples} for {length} samples")
    return low, high
