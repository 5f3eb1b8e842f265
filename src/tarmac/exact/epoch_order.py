"""The order of the samples of a dataset or a mix in an epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tarmac.exact.dataset import Dataset
from tarmac.exact.mix import Mix
from tarmac.exact.order.exact import ExactOrder
from tarmac.exact.order.mixture import MixedOrder
from tarmac.runtime.seeds import Seed, make_seed
from tarmac.runtime.types import Integers


class EpochOrder:
    """Map positions of an epoch to sample numbers and back, by arithmetic instead of lists."""

    def __init__(
        self,
        dataset: Dataset[Any] | Mix[Any],
        *,
        seed: Seed = 0,
        shuffle: bool = True,
        streams: int = 64,
        window: int = 16_384,
    ) -> None:
        datasets = dataset.datasets if isinstance(dataset, Mix) else (dataset,)
        sizes = [len(one) for one in datasets]
        self._bases = np.cumsum([0, *sizes])
        self._lengths = datasets[0].lengths
        self._starts = [np.cumsum(one.lengths) - one.lengths for one in datasets]
        orders = [
            # Each has its own seed; otherwise datasets of equal lengths would be shuffled alike.
            ExactOrder(
                one.lengths,
                seed=make_seed(seed, number) if number else seed,
                shuffle=shuffle,
                streams=streams,
                window=window,
            )
            for number, one in enumerate(datasets)
        ]
        self._order: ExactOrder | MixedOrder = orders[0]
        if isinstance(dataset, Mix):
            self._order = MixedOrder(orders, dataset.counts, seed=seed, shuffle=shuffle, streams=streams)
        self.samples: int = self._order.samples

    def at(self, epoch: int, positions: ArrayLike) -> Integers:
        """Return the number of the sample at each position of an epoch."""
        if isinstance(self._order, ExactOrder):
            shards, rows = self._order.at(epoch, positions)
            flat: Integers = self._starts[0][shards] + rows
            return flat
        datasets, shards, rows = self._order.at(epoch, positions)
        numbers: Integers = self._bases[datasets] + rows
        for number in np.unique(datasets).tolist():
            mine = datasets == number
            numbers[mine] += self._starts[number][shards[mine]]
        return numbers

    def positions_of(self, epoch: int, index: int) -> list[int]:
        """Return the positions of an epoch that hold a sample."""
        dataset = int(np.searchsorted(self._bases, index, side="right")) - 1
        inside = index - int(self._bases[dataset])
        shard = int(np.searchsorted(self._starts[dataset], inside, side="right")) - 1
        row = inside - int(self._starts[dataset][shard])
        if isinstance(self._order, ExactOrder):
            return self._order.position_of(epoch, shard, row).tolist()  # type: ignore[no-any-return]
        return self._order.position_of(epoch, dataset, shard, row)

    def last_position(self, epoch: int, shard: int) -> int | None:
        """Return the last position of an epoch with a sample of this shard; None for a mix, which may repeat."""
        if not isinstance(self._order, ExactOrder):
            return None
        rows = np.arange(self._lengths[shard])
        return int(self._order.position_of(epoch, np.full_like(rows, shard), rows).max())

    def substitutes(self, epoch: int, position: int) -> Iterator[int]:
        """Yield the replacements for the sample at a position: first its window, then the rest of the epoch."""
        if isinstance(self._order, ExactOrder):
            for shard, row in self._order.substitutes(epoch, position):
                yield int(self._starts[0][shard]) + row
        else:
            for dataset, shard, row in self._order.substitutes(epoch, position):
                yield int(self._bases[dataset] + self._starts[dataset][shard]) + row
        for other in itertools.chain(range(position + 1, self.samples), range(position)):
            yield int(self.at(epoch, [other])[0])
