"""Several datasets in one epoch, each as often as asked and evenly spread, by arithmetic instead of lists.

The epoch has T slots, and the numbers 0 … T-1 belong to the datasets: the first counts[0] of them to dataset
0, and so on. Slots and numbers are both dealt out to C streams by their remainder modulo C, so a stream fills
its slots with its own numbers. So a rank that owns whole streams here owns, throughout a pass and as long as
the epoch lasts, whole streams of each dataset that has C streams too.

Inside a stream the slots are cut into blocks. How many slots of a block belong to which dataset is a quota;
in which of them it comes is decided by a keyed bijection.

    stream s   | 0 0 1 0 2 0 0 1 | 1 0 0 0 2 1 0 0 | 0 1 ...
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tarmac.exact.order.bijection import Words, mix_key, permute, unpermute
from tarmac.exact.order.exact import MAX_STREAMS, ExactOrder, Integers, check_option, check_positions
from tarmac.runtime.seeds import Seed, make_seed

__all__ = ["counts_of", "MixedOrder", "Quotas"]

_MAX_SLOTS = 1 << 31
"""How many slots a stream may have, so that the product of two numbers of slots stays below 2**63."""


def counts_of(weights: Sequence[float], samples: int) -> list[int]:
    """Share out a number of samples by weights: whole numbers that add up, each less than one from its share.

    What rounding down leaves over goes to the largest remainders, and to the first among equals.
    """
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ValueError(f"weights are finite, not negative, and not all zero; found {list(weights)}")
    if operator.index(samples) < 0:
        raise ValueError(f"the number of samples to share out is 0 or more, not {samples}")
    exact = [Fraction(weight) for weight in weights]  # floats would round, and differently for other weights
    shares = [weight * samples / sum(exact) for weight in exact]
    counts = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda place: counts[place] - shares[place])
    for place in by_remainder[: samples - sum(counts)]:
        counts[place] += 1
    return counts


class Quotas:
    """How many of the first slots of a stream belong to which dataset.

    The datasets are halved again and again, as in a binary tree. When a group has had m slots of a stream,
    its left half has had floor((m · left + phase) / all) of them and its right half the others; `left` and
    `all` are how many numbers of the stream belong to the half and to the group, and 0 <= phase < all.

    Since left <= all, one more slot for the group is one for exactly one half: no quota is ever negative. For
    m = 0 the left half has had 0, and for m = all it has had `left`: every count comes out exactly. Each
    halving rounds by less than one, so a dataset is never further from its share than there are halvings.
    The phases of the streams are spread evenly, so a rare dataset comes now in one stream and then in another
    instead of in all of them at once, and over all streams the rounding nearly cancels out.
    """

    def __init__(self, counts: Sequence[int], streams: int) -> None:
        self.starts = np.array([0, *accumulate(counts)], np.int64)
        """The first number of each dataset, and T."""
        self.before = (self.starts[:, None] - np.arange(streams, dtype=np.int64) + streams - 1) // streams
        """How many numbers of a stream (the column) are below the first one of a dataset (the row)."""
        self.slots: Integers = self.before[-1]
        """How many slots each stream has."""
        self._halvings = max(len(counts) - 1, 0).bit_length()

    def owner(
        self, stream: Integers, begin: Integers, end: Integers, place: Integers
    ) -> tuple[Integers, Integers]:
        """Return which dataset a place among the slots [begin, end) belongs to, and its rank in that.

        The places are numbered dataset after dataset, and the ranks from the beginning of the stream.
        """
        low, high = np.zeros_like(stream), np.full_like(stream, len(self.starts) - 1)
        had = np.stack([begin, end])
        for _ in range(self._halvings):
            middle = (low + high) // 2
            lefts = self._left(had, stream, low, middle, high)
            quota = lefts[1] - lefts[0]
            is_left = place < quota
            place = np.where(is_left, place, place - quota)
            had = np.where(is_left, lefts, had - lefts)
            low, high = np.where(is_left, low, middle), np.where(is_left, middle, high)
        return low, had[0] + place

    def held(self, dataset: int, stream: int, slots: int) -> tuple[int, int]:
        """Return how many of the first slots belong to the datasets before this one, and how many to it."""
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
        """Return how many of the slots that the datasets [low, high) have had are those of [low, middle).

        For arrays and single numbers alike.
        """
        first = self.before[low, stream]
        whole = np.maximum(self.before[high, stream] - first, 1)  # a group without numbers has had no slots
        streams = len(self.slots)
        # Multiplied by an odd number of its own, each halving rounds up in other streams than those above it.
        phase = whole * (stream * (2 * middle + 1) % streams) // streams
        return (had * (self.before[middle, stream] - first) + phase) // whole


class MixedOrder:
    """Which sample of which dataset comes at which position of an epoch.

    Dataset j comes counts[j] times. An epoch goes on in each dataset where the one before ended, so after
    each epoch no sample of a dataset is more than one time ahead of another. Each pass has its own order.
    Without `shuffle` the datasets follow one another. In every `block` slots of a stream each dataset has its
    share: a smaller block spreads them more evenly and less at random.
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
        self._check()
        self._quotas = Quotas(self.counts, self.streams)
        # The last block of a stream takes what does not fill another one.
        self._last_blocks = np.maximum(self._quotas.slots // self.block, 1) - 1

    def at(self, epoch: int, positions: ArrayLike) -> tuple[Integers, Integers, Integers]:
        """Return the dataset, its shard and the row in that of the sample at each position."""
        dataset, number = self._numbers(epoch, check_positions(positions, self.samples))
        start, place, size = np.empty((3, number.size), np.int64)
        key = np.empty(number.size, np.uint64)
        groups = list(self._groups(epoch, dataset, number))
        for chosen, passed, inner, places in groups:
            window = self.orders[chosen].windows(passed, inner)
            start[places], place[places], size[places], key[places] = window
        line = start + permute(place, size, key)  # once for all: it is the larger part of the work
        shard, row = np.empty((2, number.size), np.int64)
        for chosen, passed, _, places in groups:
            shard[places], row[places] = self.orders[chosen].on_line(passed, line[places])
        return dataset, shard, row

    def position_of(self, epoch: int, dataset: int, shard: int, row: int) -> list[int]:
        """Return the positions of the epoch at which a sample comes: none, one, or several."""
        if not 0 <= dataset < len(self.orders):
            raise IndexError(f"there are {len(self.orders)} datasets, numbered from 0; asked for {dataset}")
        order, count = self.orders[dataset], self.counts[dataset]
        first = operator.index(epoch) * count
        found = []
        for passed in range(first // max(order.samples, 1), -(-(first + count) // max(order.samples, 1))):
            number = passed * order.samples + int(order.position_of(passed, shard, row)[0]) - first
            if 0 <= number < count:
                found.append(self._position(epoch, dataset, number))
        return sorted(found)

    def substitutes(self, epoch: int, position: int) -> Iterator[tuple[int, int, int]]:
        """Walk through the samples (dataset, shard, row) that can take the place of the one at a position.

        They are those of its window in its own dataset, so the mixture keeps its proportions.
        """
        dataset, number = self._numbers(epoch, check_positions([position], self.samples))
        ((chosen, passed, inner, _),) = self._groups(epoch, dataset, number)
        for shard, row in self.orders[chosen].substitutes(passed, int(inner[0])):
            yield chosen, shard, row

    def _numbers(self, epoch: int, positions: Integers) -> tuple[Integers, Integers]:
        """Return the dataset at each position, and which of its counts[dataset] numbers comes there."""
        quotas = self._quotas
        if not self.shuffle:
            dataset = np.searchsorted(quotas.starts, positions, side="right") - 1
            return dataset, positions - quotas.starts[dataset]
        index, stream = np.divmod(positions, self.streams)
        last = self._last_blocks[stream]
        block = np.minimum(index // self.block, last)
        begin = block * self.block
        end = np.where(block == last, quotas.slots[stream], begin + self.block)
        place = permute(index - begin, end - begin, self._key(epoch, stream, block))
        dataset, rank = quotas.owner(stream, begin, end, place)
        number = (quotas.before[dataset, stream] + rank) * self.streams + stream
        return dataset, number - quotas.starts[dataset]

    def _position(self, epoch: int, dataset: int, number: int) -> int:
        """Return where a number of a dataset comes: the inverse of `_numbers`."""
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
        place = earlier_at_end - earlier + rank - had
        index = begin + int(unpermute(place, end - begin, self._key(epoch, stream, block))[0])
        return index * self.streams + stream

    def _groups(
        self, epoch: int, dataset: Integers, number: Integers
    ) -> Iterator[tuple[int, int, Integers, Integers]]:
        """Part numbers by dataset and pass: yield both, the positions in the pass, and where they were."""
        for chosen in np.unique(dataset).tolist():
            places = np.nonzero(dataset == chosen)[0]
            length = self.orders[chosen].samples
            # Python's numbers do not overflow, however many epochs there were.
            passed, offset = divmod(operator.index(epoch) * self.counts[chosen], length)
            more, inner = np.divmod(number[places] + offset, length)
            for each in np.unique(more).tolist():
                mine = more == each
                yield chosen, passed + each, inner[mine], places[mine]

    def _key(self, epoch: int, stream: ArrayLike, block: ArrayLike) -> Words:
        return mix_key(mix_key(make_seed("mixed order", self.seed, epoch), stream), block)

    def _check(self) -> None:
        """Refuse what cannot be mixed, now and not at the first batch."""
        if not self.orders or len(self.orders) != len(self.counts):
            raise ValueError(
                f"a mixture has one count for each dataset, and at least one dataset: "
                f"found {len(self.counts)} counts for {len(self.orders)} datasets"
            )
        for place, (order, count) in enumerate(zip(self.orders, self.counts, strict=True)):
            if count < 0 or (count and not order.samples):
                raise ValueError(
                    f"counts[{place}] is {count}, for a dataset of {order.samples} samples: a count is 0 or "
                    "more, and 0 for an empty dataset"
                )
        if self.samples >= self.streams * _MAX_SLOTS:
            raise ValueError(
                f"an epoch of {self.samples} samples in {self.streams} streams is too long: "
                "a stream takes up to 2**31. Choose smaller counts or more streams."
            )
        make_seed(self.seed)
