"""Which sample comes at which position of an epoch, by arithmetic instead of lists.

    shards in the order of the epoch   | 4 4 4 4 | 0 0 0 | 2 2 2 2 2 2 | ...      the line of N samples
    begun somewhere else each epoch
    cut into C streams                 |     stream 0     |     stream 1     | ...
    each cut into windows              |   w0  |    w1    |  w0 |     w1     | ...
    permuted inside each window, then dealt out: position p is index p div C of stream p mod C

A window is what a reader has to have at hand for one stream, so memory and requests stay bounded, and a rank
that takes every R-th position, with R a divisor of C, reads whole streams and nothing else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tarmac.exact.order.bijection import MAX_SIZE, Words, mix_key, permute, unpermute
from tarmac.runtime.seeds import Seed, make_seed

__all__ = ["check_option", "check_positions", "ExactOrder", "Integers", "MAX_STREAMS"]

Integers = NDArray[np.int64]

MAX_STREAMS = 1 << 20
"""More streams than ranks anywhere; each takes a little memory."""

# Several epochs, because the passes of a mixture alternate; many of a small dataset, because they are short.
_EPOCHS_KEPT, _SHARDS_KEPT = 4, 1 << 16
_CACHES = {"_cuts", "_epoch", "_sizes"}
_AT_ONCE = 64
"""How many substitutes to work out in one go."""


@dataclass(frozen=True, eq=False, slots=True)
class _Epoch:
    """What is worked out once per epoch: a few numbers for each shard and each stream."""

    shards: Integers  # which shard is n-th in the line
    ends: Integers  # where the n-th ends in the line
    starts: Integers  # where a shard starts in the line, by its own number
    keys: Words  # of each stream
    turn: np.uint64  # where the line begins, or the key by which all of it is permuted
    leads: Integers  # how much of a stream's first window is cut off, so that borders differ between epochs


class ExactOrder:
    """Which sample comes at which position of an epoch: a pure function of (lengths, seed, epoch).

    `lengths` says how many samples each shard holds. Setting up an epoch takes time and memory for each
    shard, finding a sample takes the same short time whatever their number. Without `shuffle` the order is
    that of the shards and their rows; `window` is then only where substitutes come from.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        *,
        seed: Seed = 0,
        shuffle: bool = True,
        streams: int = 64,
        window: int = 16_384,
    ) -> None:
        self._lengths = _checked_lengths(lengths)
        self.seed, self.shuffle = seed, shuffle
        self.streams = check_option("streams", streams, MAX_STREAMS)
        self.window = check_option("window", window, 1 << 40)
        self.samples: int = sum(self._lengths.tolist())
        if self.samples > MAX_SIZE:
            raise ValueError(f"the lengths add up to {self.samples} samples, at most 2**62 can be ordered")
        make_seed(seed)  # what cannot be a seed is refused here, not at the first batch
        self._prepare()

    def at(self, epoch: int, positions: ArrayLike) -> tuple[Integers, Integers]:
        """Return the shard and the row in it of the sample at each position."""
        positions = check_positions(positions, self.samples)
        if not self.shuffle:
            return self.on_line(epoch, positions)
        start, place, size, key = self.windows(epoch, positions)
        return self.on_line(epoch, start + permute(place, size, key))

    def position_of(self, epoch: int, shard: ArrayLike, row: ArrayLike) -> Integers:
        """Return at which position of the epoch each sample comes: the inverse of `at`."""
        shard, row = self._checked_samples(shard, row)
        plan = self._epoch(epoch)
        line = plan.starts[shard] + row
        if not self.shuffle:
            return line
        line = self._begun_elsewhere(plan, line, back=True)
        stream = np.searchsorted(self._cuts, line, side="right") - 1
        index = line - self._cuts[stream]
        first, size, key = self._windows(plan, stream, index)
        return (unpermute(index - first, size, key) + first) * self.streams + stream

    def window_at(self, epoch: int, position: int) -> range:
        """Return all the positions that share a window with this one, in their order."""
        (position,) = check_positions([position], self.samples).tolist()
        if not self.shuffle:
            first = position - position % self.window
            return range(first, min(first + self.window, self.samples))
        _, (place,), (size,), _ = self.windows(epoch, np.array([position]))
        first = position - int(place) * self.streams
        return range(first, first + int(size) * self.streams, self.streams)

    def substitutes(self, epoch: int, position: int) -> Iterator[tuple[int, int]]:
        """Walk through the other samples (shard, row) of the window, from the one after the position around.

        What takes the place of a sample that cannot be used is thus the same on every machine, and near.
        """
        window = self.window_at(epoch, position)
        here = window.index(position)
        for part in (window[here + 1 :], window[:here]):
            for begin in range(0, len(part), _AT_ONCE):
                shards, rows = self.at(epoch, np.array(part[begin : begin + _AT_ONCE]))
                yield from zip(shards.tolist(), rows.tolist(), strict=True)

    def windows(self, epoch: int, positions: Integers) -> tuple[Integers, Integers, Integers, Words]:
        """Say for each position where its window starts in the line, its place there, and size and key.

        The first half of `at`, which a mixture takes for many orders before it permutes for all of them.
        """
        if not self.shuffle:
            none = np.zeros_like(positions)
            return positions, none, none + 1, none.view(np.uint64)
        index, stream = np.divmod(positions, self.streams)
        first, size, key = self._windows(self._epoch(epoch), stream, index)
        return self._cuts[stream] + first, index - first, size, key

    def on_line(self, epoch: int, line: Integers) -> tuple[Integers, Integers]:
        """Return the shard and the row of the n-th sample of the line: the second half of `at`."""
        plan = self._epoch(epoch)
        if self.shuffle:
            line = self._begun_elsewhere(plan, line)
        shard = plan.shards[np.searchsorted(plan.ends, line, side="right")]  # right: not the empty ones
        return shard, line - plan.starts[shard]

    def _windows(self, plan: _Epoch, stream: Integers, index: Integers) -> tuple[Integers, Integers, Words]:
        """Return first index, size and key of the window that holds each index of a stream."""
        lead = plan.leads[stream]
        number = (index + lead) // self.window
        begin = number * self.window - lead
        first = np.maximum(begin, 0)
        size = np.minimum(begin + self.window, self._sizes[stream]) - first
        return first, size, mix_key(plan.keys[stream], number)

    def _begun_elsewhere(self, plan: _Epoch, line: Integers, *, back: bool = False) -> Integers:
        """Begin the line at another sample each epoch, so that few shards are not always cut alike.

        What fits into one window is permuted as a whole: there is nothing to gain from reading it in parts.
        """
        if not line.size:
            return line
        if self.samples <= self.window:
            return (unpermute if back else permute)(line, self.samples, plan.turn)
        turn = int(plan.turn % np.uint64(self.samples))
        return (line - turn if back else line + turn) % self.samples

    def _set_up(self, epoch: int) -> _Epoch:
        if operator.index(epoch) < 0:
            raise ValueError(f"epochs are counted from 0, there is none with the number {epoch}")
        key = make_seed("exact order", self.seed, epoch)
        shards = np.arange(len(self._lengths), dtype=np.int64)
        if self.shuffle:
            shards = np.argsort(mix_key(mix_key(key, 0), shards), kind="stable")
        ends = np.cumsum(self._lengths[shards])
        starts = np.empty_like(ends)
        starts[shards] = ends - self._lengths[shards]
        streams = np.arange(self.streams)
        leads = (mix_key(mix_key(key, 1), streams) % np.uint64(self.window)).astype(np.int64)
        turn = mix_key(key, 3)[0]
        return _Epoch(shards, ends, starts, mix_key(mix_key(key, 2), streams), turn, leads)

    def _checked_samples(self, shard: ArrayLike, row: ArrayLike) -> tuple[Integers, Integers]:
        shard, row = np.broadcast_arrays(np.atleast_1d(_integers(shard)), np.atleast_1d(_integers(row)))
        if shard.size and not 0 <= shard.min() <= shard.max() < len(self._lengths):
            raise IndexError(f"there are {len(self._lengths)} shards, numbered from 0; asked for {shard}")
        if ((row < 0) | (row >= self._lengths[shard])).any():
            raise IndexError(f"rows are numbered from 0 up to the length of their shard; asked for {row}")
        return shard, row

    def _prepare(self) -> None:
        """Work out what is not pickled, and begin with no epoch set up."""
        bounds = np.arange(self.streams + 1, dtype=np.int64)
        shorter, longer_ones = divmod(self.samples, self.streams)
        self._cuts = bounds * shorter + np.minimum(bounds, longer_ones)  # where streams start
        self._sizes = np.diff(self._cuts)
        kept = _SHARDS_KEPT // (len(self._lengths) + self.streams)
        self._epoch: Callable[[int], _Epoch] = lru_cache(max(kept, _EPOCHS_KEPT))(self._set_up)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _CACHES}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def __len__(self) -> int:
        return self.samples


def check_option(name: str, value: int, most: int) -> int:
    """Return a number that has to lie in [1, most], or raise."""
    if not 1 <= operator.index(value) <= most:
        raise ValueError(f"{name}= is a whole number from 1 to {most}, not {value}")
    return operator.index(value)


def check_positions(positions: ArrayLike, samples: int) -> Integers:
    """Return positions as an array of one dimension, or raise if one lies outside of the epoch."""
    found = np.atleast_1d(_integers(positions))
    if found.ndim != 1:
        raise ValueError(f"positions are a list or an array of one dimension, found {found.ndim} dimensions")
    # Negative numbers seen as unsigned are huge, so one comparison finds both kinds of strays.
    if found.size and int(found.view(np.uint64).max()) >= samples:
        stray = found[(found < 0) | (found >= samples)][0]
        raise IndexError(f"position {stray} is outside of the epoch: its {samples} positions count from 0")
    return found


def _integers(numbers: ArrayLike) -> Integers:
    found = np.asarray(numbers)
    if found.size and found.dtype.kind not in "iu":
        raise TypeError(f"expected whole numbers, found an array of {found.dtype}: round or cast them first")
    return found.astype(np.int64, copy=False)


def _checked_lengths(lengths: ArrayLike) -> Integers:
    found = _integers(lengths)
    if found.ndim != 1:
        raise ValueError(f"lengths= is one number for each shard, found {found.ndim} dimensions")
    if (found < 0).any():
        where = int(np.argmin(found))
        raise ValueError(f"a shard holds 0 samples or more, but lengths[{where}] is {found[where]}")
    return found.copy()
