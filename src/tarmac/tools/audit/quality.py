"""How well an order is shuffled, as one number, and other orders to compare it with."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tarmac.runtime.seeds import Seed, make_seed
from tarmac.runtime.types import Integers
from tarmac.stream.shuffling import ShardShuffle, buffer_shuffle

__all__ = ["ideal_order", "shuffle_quality", "stream_order"]

Numbers = NDArray[np.float64]

INITIAL = 100
"""Samples in the buffer when a stream's `shuffle` hands out the first one, unless told otherwise."""
_FEWEST = 32
"""Smaller batches are taken together: a batch of one is spread as well in every order."""
_LOOKED_AT = 1 << 20
"""Samples looked at, in batches spread over the epoch: the mean of so many does not get better."""


def shuffle_quality(at: Callable[[Integers], NDArray[Any]], samples: int, batch: int) -> float:
    """Say how evenly batches cover the dataset: 0 as if read in order, 1 as if drawn at random.

    `at` returns for positions of the epoch where in the dataset their samples are, in [0, samples).

    For each batch the Cramér-von Mises statistic b · ∫ (F(x) - x)² dx is taken: how far the share F(x) of the
    batch that comes from the first part x of the dataset is from x itself. Its mean over batches is put on
    the scale between what random batches have (known exactly) and what the same batches have when the
    dataset is read in order. This is 1 minus the correlation inside batches, for labels that depend on the
    place in the dataset: at 0.9, batches of b samples say as little about the whole as random ones of
    b / (1 + 0.1 (b - 1)). An order more even than random counts as 1, and so does an epoch of one batch.
    """
    size = min(batch * -(-_FEWEST // batch), samples)
    if size < 2 or size == samples:
        return 1.0
    batches = samples // size
    chosen = np.unique(np.linspace(0, batches - 1, min(batches, max(_LOOKED_AT // size, 1))).astype(np.int64))
    positions = chosen[:, None] * size + np.arange(size)
    found = at(positions.ravel()).reshape(positions.shape)
    in_order, random_ = _unevenness(positions, samples), _random_unevenness(size, samples)
    quality = (in_order - _unevenness(found, samples)) / (in_order - random_)
    return min(max(quality, 0.0), 1.0)


def _unevenness(rows: NDArray[Any], samples: int) -> float:
    """Return the mean Cramér-von Mises statistic of rows of places, against an even spread."""
    size: int = rows.shape[1]
    places = np.sort((rows + 0.5) / samples, axis=1)
    even = (np.arange(size) + 0.5) / size
    return float(np.square(places - even).sum(axis=1).mean()) + 1 / (12 * size)


def _random_unevenness(size: int, samples: int) -> float:
    """Return what to expect of `size` samples drawn without replacement; 1/6 for many samples.

    F(x) is then a mean of draws with variance p(1-p)/size · (samples-size)/(samples-1), where p = k/samples
    is the share of samples below x; the last term is how far p is from x between two samples.
    """
    return (samples + 1) * (samples - size) / (6 * samples**2) + size / (12 * samples**2)


def stream_order(
    lengths: Integers, *, batch_size: int, world_size: int, buffer: int, seed: Seed, epoch: int
) -> Integers:
    """Return the samples in the order of a stream: shards shuffled and dealt out, then a buffer on each rank.

    What `WebDataset(shards, shardshuffle=True).shuffle(buffer)` does with one worker on each rank, for
    numbers in place of samples. Batches of the ranks take turns, as long as a rank has samples.
    """
    ends = np.cumsum(lengths).tolist()
    ranks = [
        buffer_shuffle(
            _numbers(ends, lengths, islice(_shards(len(ends), seed, epoch), rank, None, world_size)),
            buffer,
            INITIAL,
            random.Random(make_seed("shuffle", seed, epoch, rank, 0)),
        )
        for rank in range(world_size)
    ]
    return np.fromiter(_in_turn(ranks, batch_size), np.int64, int(lengths.sum()))


def _shards(count: int, seed: Seed, epoch: int) -> Iterator[int]:
    stage = ShardShuffle(size=True, seed=seed)
    stage.set_epoch(epoch)
    return stage(range(count))


def _numbers(ends: list[int], lengths: Integers, shards: Iterator[int]) -> Iterator[int]:
    for shard in shards:
        yield from range(ends[shard] - int(lengths[shard]), ends[shard])


def _in_turn(ranks: list[Iterator[int]], batch_size: int) -> Iterator[int]:
    while ranks:
        batches = [list(islice(rank, batch_size)) for rank in ranks]
        for batch in batches:
            yield from batch
        ranks = [rank for rank, batch in zip(ranks, batches, strict=True) if len(batch) == batch_size]


def ideal_order(samples: int, seed: Seed, epoch: int) -> Integers:
    """Return a permutation drawn at random: what no reader of whole shards can do."""
    return np.random.default_rng(make_seed("ideal order", seed, epoch)).permutation(samples)
