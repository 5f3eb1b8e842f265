"""Mix several datasets in one epoch, evenly spread, by arithmetic instead of lists.

The epoch has T slots, and the numbers 0 … T-1 belong to the datasets: the first counts[0] to dataset 0, and
so on. Slots and numbers are both assigned to C streams by their remainder modulo C, so a stream fills its
slots with its own numbers. Therefore a rank that owns whole streams of the mixture also owns whole streams of
each dataset that has C streams.

The slots of a stream are cut into blocks. A quota says how many slots of a block belong to which dataset; a
keyed bijection decides which slots these are.

    stream s   | 0 0 1 0 2 0 0 1 | 1 0 0 0 2 1 0 0 | 0 1 ...
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tarmac.errors import UsageError
from tarmac.exact.order.bijection import Words, mix_key, permute, unpermute
from tarmac.exact.order.exact import MAX_STREAMS, ExactOrder, check_numbers, check_option
from tarmac.runtime.seeds import Seed, make_seed
from tarmac.runtime.types import Integers

_MAX_SLOTS = 1 << 31
"""Largest number of slots of a stream: the product of two such numbers stays below 2**63."""


def counts_of(weights: Sequence[float], samples: int) -> list[int]:
    """Distribute a number of samples by weights: integers with that sum, each within one of its exact share.

    The remainder after rounding down goes to the largest fractions, and to the first among equal ones.
    """
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise UsageError(f"expected finite weights >= 0, not all zero, got {list(weights)}.", field="weights")
    if operator.index(samples) < 0:
        raise UsageError(f"expected 0 or more, got {samples}.", field="samples")
    exact = [Fraction(weight) for weight in weights]  # floats would round
    shares = [weight * samples / sum(exact) for weight in exact]
    counts = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda number: counts[number] - shares[number])
    for number in by_remainder[: samples - sum(counts)]:
        counts[number] += 1
    return counts


class Quotas:
    """The number of slots of a stream that belong to each dataset, up to any slot.

    The datasets are bisected repeatedly, as in a binary tree. Of the first m slots of a group in a stream,
    floor((m · left + phase) / all) belong to its left half and the others to its right half. Here `left` and
    `all` are the numbers of the stream that belong to the half and to the group, and 0 <= phase < all.

    Since left <= all, one more slot for the group is one for exactly one half, so no quota is negative. For
    m = 0 the left half has 0 slots, and for m = all it has `left`, so every count is exact. Each bisection
    rounds by less than one, so the distance of a dataset from its exact share is below the depth of the tree.
    The phases of the streams are spread evenly: a rare dataset alternates between streams, and over all
    streams the rounding nearly cancels out.
    """

    def __init__(self, counts: Sequence[int], streams: int) -> None:
        self.starts = np.array([0, *accumulate(counts)], np.int64)
        """The first number of each dataset, and T."""
        self.before = (self.starts[:, None] - np.arange(streams, dtype=np.int64) + streams - 1) // streams
        """How many numbers of a stream (column) are below the first number of a dataset (row)."""
        self.slots: Integers = self.before[-1]
        """The number of slots of each stream."""
        self._depth = max(len(counts) - 1, 0).bit_length()

    def owner(
        self, stream: Integers, begin: Integers, end: Integers, index: Integers
    ) -> tuple[Integers, Integers]:
        """Return the dataset that owns an index among the slots [begin, end), and its rank in the dataset.

        Indices are numbered dataset after dataset, ranks from the start of the stream.
        """
        low, high = np.zeros_like(stream), np.full_like(stream, len(self.starts) - 1)
        had = np.stack([begin, end])
        for _ in range(self._depth):
            middle = (low + high) // 2
            lefts = self._left(had, stream, low, middle, high)
            quota = lefts[1] - lefts[0]
            is_left = index < quota
            index = np.where(is_left, index, index - quota)
            had = np.where(is_left, lefts, had - lefts)
            low, high = np.where(is_left, low, middle), np.where(is_left, middle, high)
        return low, had[0] + index

    def held(self, dataset: int, stream: int, slots: int) -> tuple[int, int]:
        """Return how many of the first slots belong to earlier datasets, and how many to this one."""
        low, high, earlier, had = 0, len(self.starts) - 1, 0, slots
        while high - low > 1:
            middle = (low + high) // 2
            left = int(self._left(had, stream, low, middle, high))
            if dataset < middle:
                high, had = middle, left
            else:
                low, had, earlier = middle, had - left, earlier + left
        return earlier, had

    def _left(self, had: Any, stream: Any, low: Any, middle: Any, high: Any) -> Any:
        """Return how many of the `had` slots of the datasets [low, high) belong to [low, middle).

        Arguments are arrays or numbers.
        """
        first = self.before[low, stream]
        whole = np.maximum(self.before[high, stream] - first, 1)  # a group without numbers has no slots
        streams = len(self.slots)
        # With its own odd factor, each bisection rounds up in other streams than those above it.
        phase = whole * (stream * (2 * middle + 1) % streams) // streams
        return (had * (self.before[middle, stream] - first) + phase) // whole


class MixedOrder:
    """The order of an epoch of several datasets.

    An epoch takes counts[j] samples from dataset j, and continues where the previous epoch stopped. So the
    samples of a dataset have been read equally often, up to a difference of one. Each round through a dataset has its
    own order. Without `shuffle` the datasets follow one another. In every `block` slots of a stream each
    dataset has its share: a smaller block spreads datasets more evenly and less randomly.
    """

    def __init__(
        self,
        orders: Sequence[ExactOrder],
        counts: Sequence[int],
        *,
        seed: Seed = 0,
        shuffle: bool = True,
        streams: int = 64,
        block: int = 256,
    ) -> None:
        self.orders, self.counts = tuple(orders), tuple(map(operator.index, counts))
        self.seed, self.shuffle = seed, shuffle
        self.streams = check_option("streams", streams, MAX_STREAMS)
        self.block = check_option("block", block, _MAX_SLOTS)
        self.samples = sum(self.counts)
        if self.samples >= self.streams * _MAX_SLOTS:
            raise ValueError(
                f"an epoch of {self.samples} samples in {self.streams} streams is too long: a stream holds at "
                "most 2**31. Use smaller counts or more streams."
            )
        self._bases = np.cumsum([0, *(order.samples for order in self.orders)])
        self._quotas = Quotas(self.counts, self.streams)
        # The last block of a stream also takes the remainder.
        self._last_blocks = np.maximum(self._quotas.slots // self.block, 1) - 1

    def at(self, epoch: int, positions: ArrayLike) -> Integers:
        """Return the number of the sample at each position; datasets are numbered one after the other."""
        dataset, number = self._numbers(epoch, check_numbers(positions, self.samples, "position"))
        start, offset, size = np.empty((3, number.size), np.int64)
        key = np.empty(number.size, np.uint64)
        groups = list(self._groups(epoch, dataset, number))
        for which, round_, inner, at in groups:
            start[at], offset[at], size[at], key[at] = self.orders[which].windows(round_, inner)
        line = start + permute(offset, size, key)  # one call for all: it is most of the work
        for which, round_, _, at in groups:
            line[at] = self._bases[which] + self.orders[which].on_line(round_, line[at])
        return line

    def positions_of(self, epoch: int, number: int) -> list[int]:
        """Return the positions of a sample in the epoch: none, one, or several."""
        check_numbers(number, int(self._bases[-1]), "sample")
        dataset = int(np.searchsorted(self._bases, number, side="right")) - 1
        inside = number - int(self._bases[dataset])
        order, count = self.orders[dataset], self.counts[dataset]
        first = operator.index(epoch) * count
        positions = []
        for round_ in range(first // order.samples, -(-(first + count) // order.samples)):
            drawn = round_ * order.samples + int(order.position_of(round_, inside)[0]) - first
            if 0 <= drawn < count:
                positions.append(self._position(epoch, dataset, drawn))
        return sorted(positions)

    def last_position(self, _epoch: int, _shard: int) -> int | None:
        """Return None: the samples of a shard may repeat."""
        return None

    def neighbours(self, epoch: int, position: int) -> Iterator[int]:
        """Yield the other samples of the window in its own dataset, so the mixture keeps its proportions."""
        dataset, number = self._numbers(epoch, check_numbers([position], self.samples, "position"))
        ((which, round_, inner, _),) = self._groups(epoch, dataset, number)
        for other in self.orders[which].neighbours(round_, int(inner[0])):
            yield int(self._bases[which]) + other

    def _numbers(self, epoch: int, positions: Integers) -> tuple[Integers, Integers]:
        """Return the dataset at each position, and which of its counts[dataset] numbers is there."""
        quotas = self._quotas
        if not self.shuffle:
            dataset = np.searchsorted(quotas.starts, positions, side="right") - 1
            return dataset, positions - quotas.starts[dataset]
        index, stream = np.divmod(positions, self.streams)
        last = self._last_blocks[stream]
        block = np.minimum(index // self.block, last)
        begin = block * self.block
        end = np.where(block == last, quotas.slots[stream], begin + self.block)
        offset = permute(index - begin, end - begin, self._key(epoch, stream, block))
        dataset, rank = quotas.owner(stream, begin, end, offset)
        number = (quotas.before[dataset, stream] + rank) * self.streams + stream
        return dataset, number - quotas.starts[dataset]

    def _position(self, epoch: int, dataset: int, number: int) -> int:
        """Return the position of a number of a dataset: the inverse of `_numbers`."""
        quotas = self._quotas
        index, stream = divmod(int(quotas.starts[dataset]) + number, self.streams)
        if not self.shuffle:
            return index * self.streams + stream
        rank = index - int(quotas.before[dataset, stream])
        last = int(self._last_blocks[stream])

        def held_before(block: int) -> int:
            return quotas.held(dataset, stream, block * self.block)[1]

        block = bisect_right(range(last + 1), rank, key=held_before) - 1
        begin = block * self.block
        end = int(quotas.slots[stream]) if block == last else begin + self.block
        (earlier, had), (earlier_at_end, _) = (quotas.held(dataset, stream, slots) for slots in (begin, end))
        offset = earlier_at_end - earlier + rank - had
        index = begin + int(unpermute(offset, end - begin, self._key(epoch, stream, block))[0])
        return index * self.streams + stream

    def _groups(
        self, epoch: int, dataset: Integers, number: Integers
    ) -> Iterator[tuple[int, int, Integers, Integers]]:
        """Group numbers by dataset and round: yield both, the positions in the round, and the indices."""
        for which in np.unique(dataset).tolist():
            at = np.nonzero(dataset == which)[0]
            length = self.orders[which].samples
            # Python's integers do not overflow, whatever the epoch.
            round_, offset = divmod(operator.index(epoch) * self.counts[which], length)
            more, inner = np.divmod(number[at] + offset, length)
            for extra in np.unique(more).tolist():
                mine = more == extra
                yield which, round_ + extra, inner[mine], at[mine]

    def _key(self, epoch: int, stream: ArrayLike, block: ArrayLike) -> Words:
        return mix_key(mix_key(make_seed("mixed order", self.seed, epoch), stream), block)


EpochOrder = ExactOrder | MixedOrder
"""The order of the samples of a dataset or a mix in an epoch."""


def substitutes(order: EpochOrder, epoch: int, position: int) -> Iterator[int]:
    """Yield the replacements for the sample at a position: first its window, then the rest of the epoch.

    So the replacement of a bad sample is the same on every machine, and close to it.
    """
    yield from order.neighbours(epoch, position)
    for other in chain(range(position + 1, order.samples), range(position)):
        yield int(order.at(epoch, [other])[0])
