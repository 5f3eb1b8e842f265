"""Locate and read samples by number, over all parts of a dataset."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from tarmac.exact.indexed import IndexedShard, cut_out
from tarmac.exact.selection import Part
from tarmac.exact.types import Rows
from tarmac.indexing.build import REQUESTS
from tarmac.runtime.lookahead import in_threads
from tarmac.runtime.types import Integers
from tarmac.samples.grouping import Sample
from tarmac.steps.stage import Each
from tarmac.storage import is_local

_Group = tuple[Part, int, Integers, Integers]
_Fetched = tuple[list[Sample], list[tuple[Each, ...]]]
TABLE = 1 << 21
"""Largest number of samples for which a table of all samples is kept; it takes tens of bytes per sample."""
FEW = 32
"""Average samples per shard in a batch below which reading one by one is faster than grouping by shard."""


class Fetcher:
    """Reads samples by number.

    A batch is read in one of three ways. If all shards are open and uniform, a table of all samples gives the
    offsets of the batch in one step. Otherwise a small batch from local shards is read sample by sample, and
    any other batch is grouped by shard, so that each remote shard needs few requests.
    """

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        self.lengths: Integers = np.concatenate([part.lengths for part in parts])
        """The number of samples from each shard."""
        self._ends = np.cumsum(self.lengths)
        self._ends_list: list[int] = self._ends.tolist()
        self.samples: int = self._ends_list[-1] if self._ends_list else 0
        self._table: Table | Literal[False] | None = None
        """All samples in one table; False if that is impossible, None if it was not built yet."""

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
        if table := self._built_table():
            return table.samples(numbers), [self.parts[0].steps] * len(numbers)
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

    def _built_table(self) -> Table | None:
        """Return a table of all samples, if they are few and uniform and their shards are open."""
        if self._table is None:
            if self.samples > TABLE or any(part.steps != self.parts[0].steps for part in self.parts):
                self._table = False
                return None
            opened = [part.shards.open_now(part.numbers.tolist(), self) for part in self.parts]
            if any(shards is None for shards in opened):
                return None  # not yet
            shards = [shard for some in opened for shard in some or ()]
            self._table = Table.of(shards, [rows for part in self.parts for rows in part.rows]) or False
        return self._table or None

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


class Table:
    """The offsets of key and fields of every selected sample, shard after shard."""

    def __init__(self, shards: Sequence[IndexedShard], rows: Sequence[Rows | None]) -> None:
        self._shards = shards  # keeps them open
        self._names = shards[0].names or ()
        self._urls = [shard.url for shard in shards]
        self._texts = [shard.sidecar.text or "" for shard in shards]
        self._contents = [shard.data for shard in shards]
        pieces = []
        for shard, some in zip(shards, rows, strict=True):
            selected = slice(None) if some is None else some.astype(np.int64)
            pieces.append(
                np.concatenate([shard.sidecar.text_bounds(selected), shard.bounds(selected)], axis=1)
            )
        self._ends = np.cumsum([len(piece) for piece in pieces])
        self._bounds = np.concatenate(pieces)

    @classmethod
    def of(cls, shards: Sequence[IndexedShard], rows: Sequence[Rows | None]) -> Table | None:
        """Build a table, or return None unless all samples have the same fields, and all are mapped or in memory."""
        names = shards[0].names if shards else None
        uniform = all(shard.names == names and shard.sidecar.text is not None for shard in shards)
        return cls(shards, rows) if names and uniform else None

    def samples(self, numbers: Integers) -> list[Sample]:
        """Return the samples with these numbers, in this order."""
        shards = np.searchsorted(self._ends, numbers, side="right").tolist()
        starts, stops, *bounds = self._bounds.take(numbers, axis=0).T.tolist()
        texts = self._texts
        keys = [texts[shard][start:stop] for shard, start, stop in zip(shards, starts, stops, strict=True)]
        urls, contents = map(self._urls.__getitem__, shards), map(self._contents.__getitem__, shards)
        return list(cut_out(self._names, keys, urls, contents, bounds))
