"""Map positions of an epoch to samples and back, by arithmetic instead of lists.

    shards in the order of the epoch   | 4 4 4 4 | 0 0 0 | 2 2 2 2 2 2 | ...      the line of N samples
    rotated by another amount each epoch
    cut into C streams                 |     stream 0     |     stream 1     | ...
    each cut into windows              |   w0  |    w1    |  w0 |     w1     | ...
    permuted inside each window, then interleaved: position p is index p div C of stream p mod C

A reader needs one window of a stream at a time, so memory and requests are bounded. A rank takes every R-th
position. If R divides C, it reads whole streams and nothing else; any other R works, with more shards per
rank.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from tarmac.errors import UsageError
from tarmac.exact.order.bijection import MAX_SIZE, Words, mix_key, permute, unpermute
from tarmac.runtime.seeds import Seed, make_seed
from tarmac.runtime.types import Integers

MAX_STREAMS = 1 << 20
"""More streams than ranks anywhere; each stream takes a little memory."""

# Several epochs, because a mixture alternates between them; many for a small dataset, where they are short.
_EPOCHS_KEPT, _SHARDS_KEPT = 4, 1 << 16
_CHUNK = 64
"""Number of substitutes to compute at a time."""


@dataclass(frozen=True, eq=False, slots=True)
class _Epoch:
    """Computed once per epoch: a few numbers for each shard and each stream."""

    ends: Integers  # where the n-th shard ends in the line
    shifts: Integers  # from the line to sample numbers, for the n-th shard in the line
    moves: Integers  # from sample numbers to the line, by the shard's own number
    keys: Words  # of each stream
    rotation: np.uint64  # of the line, or the key that permutes all of it
    leads: Integers  # how much of a stream's first window is cut off, so that window borders differ between epochs


class ExactOrder:
    """The order of an epoch: a pure function of lengths, seed and epoch.

    `lengths` holds the number of samples of each shard. Setting up an epoch takes O(shards) time and memory,
    locating a sample O(log shards). Without `shuffle` the order is that of the shards and their rows;
    `window` then only limits where substitutes come from.
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
            raise ValueError(f"expected at most 2**62 samples, got {self.samples}")
        make_seed(seed)  # raises for an invalid seed now, not at the first batch
        self._ends = np.cumsum(self._lengths)
        bounds = np.arange(self.streams + 1, dtype=np.int64)
        shorter, longer_ones = divmod(self.samples, self.streams)
        self._cuts = bounds * shorter + np.minimum(bounds, longer_ones)  # where streams start
        self._sizes = np.diff(self._cuts)
        kept = _SHARDS_KEPT // (len(self._lengths) + self.streams)
        self._epoch: Callable[[int], _Epoch] = lru_cache(max(kept, _EPOCHS_KEPT))(self._set_up)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {name: getattr(self, name) for name in ("seed", "shuffle", "streams", "window")}
        return partial(ExactOrder, **options), (self._lengths,)

    def at(self, epoch: int, positions: ArrayLike) -> Integers:
        """Return the number of the sample at each position."""
        positions = check_numbers(positions, self.samples, "position")
        if not self.shuffle:
            return positions
        start, offset, size, key = self.windows(epoch, positions)
        return self.on_line(epoch, start + permute(offset, size, key))

    def position_of(self, epoch: int, numbers: ArrayLike) -> Integers:
        """Return the position of each sample in the epoch: the inverse of `at`."""
        numbers = check_numbers(numbers, self.samples, "sample")
        if not self.shuffle:
            return numbers
        plan = self._epoch(epoch)
        shard = np.searchsorted(self._ends, numbers, side="right")
        line = self._rotated(plan, numbers + plan.moves[shard], back=True)
        stream = np.searchsorted(self._cuts, line, side="right") - 1
        index = line - self._cuts[stream]
        first, size, key = self._windows(plan, stream, index)
        return (unpermute(index - first, size, key) + first) * self.streams + stream

    def positions_of(self, epoch: int, number: int) -> list[int]:
        """Return the position of a sample, as a list of one."""
        return self.position_of(epoch, number).tolist()  # type: ignore[no-any-return]

    def last_position(self, epoch: int, shard: int) -> int:
        """Return the last position of an epoch with a sample of this shard."""
        end = self._ends[shard]
        return int(self.position_of(epoch, np.arange(end - self._lengths[shard], end)).max())

    def window_at(self, epoch: int, position: int) -> range:
        """Return all positions of the window that holds this position, in order."""
        (position,) = check_numbers([position], self.samples, "position").tolist()
        if not self.shuffle:
            first = position - position % self.window
            return range(first, min(first + self.window, self.samples))
        _, (offset,), (size,), _ = self.windows(epoch, np.array([position]))
        first = position - int(offset) * self.streams
        return range(first, first + int(size) * self.streams, self.streams)

    def neighbours(self, epoch: int, position: int) -> Iterator[int]:
        """Yield the other samples of the window, from the next position on, wrapping around."""
        window = self.window_at(epoch, position)
        index = window.index(position)
        for part in (window[index + 1 :], window[:index]):
            for begin in range(0, len(part), _CHUNK):
                yield from self.at(epoch, part[begin : begin + _CHUNK]).tolist()

    def windows(self, epoch: int, positions: Integers) -> tuple[Integers, Integers, Integers, Words]:
        """Return for each position the start of its window in the line, the offset in it, its size and key.

        This is the first half of `at`. A mixture calls it for many orders before it permutes for all of them.
        """
        if not self.shuffle:
            none = np.zeros_like(positions)
            return positions, none, none + 1, none.view(np.uint64)
        index, stream = np.divmod(positions, self.streams)
        first, size, key = self._windows(self._epoch(epoch), stream, index)
        return self._cuts[stream] + first, index - first, size, key

    def on_line(self, epoch: int, line: Integers) -> Integers:
        """Return the numbers of samples by their index in the line: the second half of `at`."""
        if not self.shuffle:
            return line
        plan = self._epoch(epoch)
        line = self._rotated(plan, line)
        return line + plan.shifts[np.searchsorted(plan.ends, line, side="right")]  # right: skips empty shards

    def _windows(self, plan: _Epoch, stream: Integers, index: Integers) -> tuple[Integers, Integers, Words]:
        """Return first index, size and key of the window that holds each index of a stream."""
        lead = plan.leads[stream]
        number = (index + lead) // self.window
        begin = number * self.window - lead
        first = np.maximum(begin, 0)
        size = np.minimum(begin + self.window, self._sizes[stream]) - first
        return first, size, mix_key(plan.keys[stream], number)

    def _rotated(self, plan: _Epoch, line: Integers, *, back: bool = False) -> Integers:
        """Rotate the line by a different amount in each epoch, so that shards are not always cut at the same samples.

        A line that fits into one window is permuted as a whole: reading it in parts would gain nothing.
        """
        if not line.size:
            return line
        if self.samples <= self.window:
            return (unpermute if back else permute)(line, self.samples, plan.rotation)
        rotation = int(plan.rotation % np.uint64(self.samples))
        return (line - rotation if back else line + rotation) % self.samples

    def _set_up(self, epoch: int) -> _Epoch:
        if operator.index(epoch) < 0:
            raise ValueError(f"expected an epoch of 0 or more, got {epoch}")
        key = make_seed("exact order", self.seed, epoch)
        shards = np.argsort(mix_key(mix_key(key, 0), np.arange(len(self._lengths))), kind="stable")
        ends = np.cumsum(self._lengths[shards])
        shifts = self._ends[shards] - ends
        moves = np.empty_like(ends)
        moves[shards] = -shifts
        streams = np.arange(self.streams)
        leads = (mix_key(mix_key(key, 1), streams) % np.uint64(self.window)).astype(np.int64)
        rotation = mix_key(key, 3)[0]
        return _Epoch(ends, shifts, moves, mix_key(mix_key(key, 2), streams), rotation, leads)


def check_option(name: str, value: object, most: int) -> int:
    """Return the value, or raise unless it is an integer in [1, most]."""
    if not isinstance(value, SupportsIndex) or not 1 <= operator.index(value) <= most:
        raise UsageError(f"expected 1 to {most}, got {value!r}.", field=name)
    return operator.index(value)


def check_numbers(numbers: ArrayLike, samples: int, what: str) -> Integers:
    """Return numbers as a one-dimensional array, or raise if one is outside of the epoch."""
    array = np.atleast_1d(_integers(numbers))
    if array.ndim != 1:
        raise ValueError(f"expected {what}s in one dimension, got {array.ndim} dimensions")
    # Negative numbers are huge as unsigned ones, so one comparison finds both errors.
    if array.size and int(array.view(np.uint64).max()) >= samples:
        wrong = array[(array < 0) | (array >= samples)][0]
        raise IndexError(f"{what} {wrong} is out of range: the epoch has {samples} {what}s")
    return array


def _integers(numbers: ArrayLike) -> Integers:
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"expected integers, got an array of {array.dtype}")
    return array.astype(np.int64, copy=False)


def _checked_lengths(lengths: ArrayLike) -> Integers:
    numbers = _integers(lengths)
    if numbers.ndim != 1:
        raise ValueError(f"expected lengths in one dimension, got {numbers.ndim} dimensions")
    if (numbers < 0).any():
        wrong = int(np.argmin(numbers))
        raise ValueError(f"expected lengths of 0 or more, got {numbers[wrong]} as lengths[{wrong}]")
    return numbers.copy()
