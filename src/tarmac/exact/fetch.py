"""Locate and read samples by number, over all parts of a dataset."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from tarmac.exact.selection import Part
from tarmac.exact.table import Table
from tarmac.exact.types import Rows
from tarmac.indexing.build import REQUESTS
from tarmac.runtime.lookahead import in_threads
from tarmac.runtime.types import Integers
from tarmac.samples.grouping import Sample
from tarmac.steps.stage import Each
from tarmac.storage import is_local

_Group = tuple[Part, int, Integers, Integers]
_Fetched = tuple[list[Sample], list[tuple[Each, ...]]]
FEW = 32
"""Average samples per shard in a batch below which reading one by one is faster than grouping by shard."""


class Fetcher:
    """Reads samples by number.

    A batch is read in one of three ways. Samples of uniform local shards that are in use are located with a table,
    in one step. Otherwise a small batch from local shards is read sample by sample, and any other batch is grouped
    by shard, so that each remote shard needs few requests.
    """

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        self.lengths: Integers = np.concatenate([part.lengths for part in parts])
        """The number of samples from each shard."""
        self._ends = np.cumsum(self.lengths)
        self._ends_list: list[int] = self._ends.tolist()
        self.samples: int = self._ends_list[-1] if self._ends_list else 0
        self._table: Table | Literal[False] | None = None
        """Where the samples of shards in use are; False if shards cannot stay open, None before the first batch."""

    @cached_property
    def _segments(self) -> list[tuple[Part, int, Rows | None, int]]:
        """For each shard: its part, its number in the part, the selected rows, and its first sample."""
        begins = iter([0, *self._ends_list])
        return [
            (part, number, rows, next(begins))
            for part in self.parts
            for number, rows in zip(part.numbers.tolist(), part.rows, strict=True)
        ]

    def shard_numbers(self, indices: Integers) -> Integers:
        """Return the number of the shard of each sample, counted over all parts."""
        return np.searchsorted(self._ends, indices, side="right")

    def samples_of(self, shard: int) -> Integers:
        """Return the numbers of the samples of a shard, which is counted over all parts."""
        return np.arange(self._segments[shard][3], self._ends_list[shard])

    def rows_of(self, shard: int, samples: Integers) -> Integers:
        """Return the rows of samples of one shard."""
        _, _, selected, begin = self._segments[shard]
        rows = samples - begin
        return rows if selected is None else selected[rows].astype(np.int64)

    def shard(self, number: int) -> tuple[Part, int]:
        """Return the part that holds a shard, and the shard's number in it."""
        return self._segments[number][:2]

    def normalized(self, indices: ArrayLike) -> Integers:
        """Return sample numbers as an array from 0 on, or raise if one is out of range."""
        numbers = np.asarray(indices)
        if numbers.ndim > 1:
            raise TypeError(f"expected a list of sample numbers, got an array of shape {numbers.shape}")
        if not numbers.size:
            return np.zeros(0, np.int64)
        if numbers.dtype.kind not in "iu":
            raise TypeError(f"expected integers as sample numbers, got an array of {numbers.dtype}")
        length, lowest, highest = self.samples, numbers.min(), numbers.max()
        if not -length <= lowest <= highest < length:
            raise IndexError(f"sample number out of range: the dataset has {length} samples, got {numbers}")
        numbers = numbers.reshape(-1).astype(np.int64, copy=False)
        return numbers if lowest >= 0 else np.where(numbers < 0, numbers + length, numbers)

    def locate(self, index: int) -> tuple[Part, int, int]:
        """Return the part, the shard and the row of a sample."""
        number, length = operator.index(index), self.samples
        if not -length <= number < length:
            raise IndexError(f"sample number out of range: the dataset has {length} samples, got {number}")
        number += length if number < 0 else 0
        part, shard, rows, begin = self._segments[bisect.bisect_right(self._ends_list, number)]
        return part, shard, number - begin if rows is None else int(rows[number - begin])

    def groups(self, indices: Integers) -> Iterator[_Group]:
        """Group samples by shard: yield part, shard, rows, and their positions in `indices`."""
        numbers = self.shard_numbers(indices)
        order = np.argsort(numbers, kind="stable")
        cuts = np.flatnonzero(np.diff(numbers[order])) + 1
        for positions in np.split(order, cuts) if len(order) else ():
            segment = int(numbers[positions[0]])
            yield *self.shard(segment), self.rows_of(segment, indices[positions]), positions

    def fetch(self, indices: ArrayLike) -> _Fetched:
        """Return raw samples, and for each the steps to apply."""
        numbers = self.normalized(indices)
        shards = self.shard_numbers(numbers)
        table = self._table_with(shards)
        known = np.zeros(len(numbers), bool) if table is None else table.holds(shards)
        if table is None or not known.any():
            return self._read(numbers)
        samples, steps = table.samples(shards[known], numbers[known]), self._steps_of(shards[known])
        if known.all():
            return samples, steps
        pairs = zip(samples, steps, strict=True)
        others = zip(*self._read(numbers[~known]), strict=True)
        merged = [next(pairs if is_known else others) for is_known in known.tolist()]
        return [sample for sample, _ in merged], [each for _, each in merged]

    def _table_with(self, shards: Integers) -> Table | None:
        """Return a table with those shards that are often used; None if shards cannot stay open."""
        if self._table is None:
            stay = [part.shards.stay_open(len(part.numbers), self) for part in self.parts]
            self._table = Table(self.lengths) if all(stay) else False
        table = self._table
        if table is False:
            return None
        for number in table.due(shards):
            part, shard, rows, _ = self._segments[number]
            opened = None if part.shards.is_fetched(shard) else part.shards.open(shard)
            if not table.add(number, opened, rows):
                # Other threads may still read the full one.
                table = self._table = Table(self.lengths)
                break
        return table

    def _steps_of(self, shards: Integers) -> list[tuple[Each, ...]]:
        """Return the steps for a sample of each of these shards."""
        if len(self.parts) == 1:
            return [self.parts[0].steps] * len(shards)
        return [self._segments[shard][0].steps for shard in shards.tolist()]

    def _read(self, numbers: Integers) -> _Fetched:
        """Read samples without a table."""
        if len(numbers) < FEW * len(self._ends_list):
            one_by_one = self._fetch_each(numbers.tolist())
            if one_by_one is not None:
                return one_by_one
        samples: list[Any] = [None] * len(numbers)
        steps: list[tuple[Each, ...]] = [()] * len(numbers)
        groups = list(self.groups(numbers))
        for (part, _, _, positions), group in zip(groups, _read_groups(groups), strict=True):
            for position, sample in zip(positions.tolist(), group, strict=True):
                samples[position] = sample
                steps[position] = part.steps
        return samples, steps

    def forget_table(self) -> None:
        """Release the table, and the shards that it keeps open."""
        self._table = None

    def _fetch_each(self, indices: list[int]) -> _Fetched | None:
        """Fetch samples one by one; None if that would cost a request per sample."""
        ends, segments = self._ends_list, self._segments
        samples, steps, readers = [], [], {}
        for index in indices:
            segment = bisect.bisect_right(ends, index)
            if segment not in readers:
                part, number, rows, begin = segments[segment]
                shard = part.shards.open(number)
                if shard.content is None:
                    return None
                readers[segment] = shard.sample, rows, begin, part.steps
            read, rows, begin, todo = readers[segment]
            row = index - begin
            samples.append(read(row if rows is None else int(rows[row])))
            steps.append(todo)
        return samples, steps


def _read_groups(groups: list[_Group]) -> Iterator[list[Sample]]:
    """Yield the samples of each group; remote shards are read in parallel."""

    def read(group: _Group) -> list[Sample]:
        part, shard, rows, _ = group
        return part.shards.open(shard).samples(rows)

    if len(groups) < 2 or all(is_local(part.shards.url(shard)) for part, shard, _, _ in groups):
        return map(read, groups)
    return in_threads(read, groups, REQUESTS)
