"""Random access to indexed shards: samples by number, by key, by condition."""

from __future__ import annotations

import bisect
import itertools
import operator
from collections import namedtuple
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from tarmac.exact.selection import Part, Rows, by_condition, by_key_hash, by_keys, by_numbers, whole
from tarmac.exact.shardset import Opening, ShardSet
from tarmac.exact.steps import Steps, apply_steps
from tarmac.exact.table import Table
from tarmac.indexing.build import REQUESTS, manifest_of
from tarmac.indexing.manifest import Manifest
from tarmac.indexing.where import parse_where
from tarmac.runtime.lookahead import in_threads
from tarmac.samples.grouping import Sample
from tarmac.steps.stage import Each
from tarmac.storage import Cache, StorageOptions, is_local
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards

if TYPE_CHECKING:
    from tarmac.exact.mix import Mix

__all__ = ["Dataset", "SeededIndex"]

Integers = NDArray[np.int64]
_Group = tuple[Part, int, Integers, Integers]
TABLE = 1 << 20
"""Samples up to which there is a table of all of them: tens of bytes each, so tens of megabytes."""
FEW = 32
"""Samples of each shard up to which getting them one by one is faster than sorting them by shard."""


class SeededIndex(int):
    """The number of a sample, and what its random steps start from; for samplers, which know both."""

    seed: int

    def __new__(cls, index: int, seed: int) -> SeededIndex:
        made = super().__new__(cls, index)
        made.seed = seed
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return SeededIndex, (int(self), self.seed)


class Dataset(Steps):
    """The samples of indexed shards, as a sequence.

    >>> ds = tarmac.Dataset("train.json").decode("rgb8").to_tuple("jpg;png", "cls")
    >>> len(ds), ds[0], ds[-1], ds[:1000], ds.get("n01440764/n01440764_10026")

    `source` is a manifest (`tarmac index` makes one) or shards, which are indexed on first use. Every method
    returns a new dataset; nothing is read before a sample is asked for. It pickles small, works as a
    map-style dataset of torch, and may be used from several threads.

    `fields` limits what is read. `cache` keeps remote shards on disk; without one, they are read by ranges.
    `in_memory` reads each shard once and keeps it. `verify` compares each field with its digest in the index.
    """

    _joined: Table | Literal[False] | None = None
    """All samples in one table; False if there can be none, None if it was not made yet."""

    def __init__(
        self,
        source: Shards | Manifest,
        *,
        fields: Collection[str] | None = None,
        cache: Cache | None = None,
        in_memory: bool = False,
        verify: bool = False,
        storage: StorageOptions = DEFAULT_STORAGE,
        progress: bool | None = None,
    ) -> None:
        if isinstance(fields, str):
            raise ValueError(f'fields must be a list of names such as ["jpg", "cls"], got {fields!r}')
        wanted = None if fields is None else frozenset(name.lower() for name in fields)
        opening = Opening(wanted, verify, in_memory, cache, storage)
        shards = ShardSet(manifest_of(source, opening.indexing, progress=progress), opening)
        self.parts: tuple[Part, ...] = (whole(shards),)

    @classmethod
    def of_parts(cls, parts: Sequence[Part]) -> Self:
        """Put together some rows of some shards; what all methods that choose samples end with."""
        made = cls.__new__(cls)
        made.parts = tuple(parts)
        return made

    # What there is

    def __len__(self) -> int:
        return self._ends_list[-1] if self._ends_list else 0

    @cached_property
    def lengths(self) -> Integers:
        """How many samples there are of each shard, in order; what the order of an epoch is made from."""
        return np.concatenate([part.lengths for part in self.parts])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of which samples these are, wherever their shards lie."""
        return xxhash.xxh3_128("".join(part.fingerprint() for part in self.parts).encode()).hexdigest()

    def keys(self) -> Iterator[str]:
        """The keys of all samples, from the index."""
        for part in self.parts:
            sidecars = part.shards.sidecars(part.numbers.tolist())
            for sidecar, rows in zip(sidecars, part.rows, strict=True):
                yield from sidecar.keys(None if rows is None else rows.astype(np.int64))

    def keys_of(self, indices: ArrayLike) -> list[str]:
        """The keys of several samples, from the index."""
        numbers = self._checked_all(indices)
        found = [""] * len(numbers)
        for part, shard, rows, places in self._groups(numbers):
            for place, key in zip(places.tolist(), part.shards.sidecar(shard).keys(rows), strict=True):
                found[place] = key
        return found

    def key_of(self, index: int) -> str:
        """The key of one sample, from the index."""
        part, number, row = self._locate(self._checked(index))
        return part.shards.sidecar(number).key(row)

    def sizes_of(self, indices: ArrayLike) -> Integers:
        """How many bytes each of several samples has in all its fields, from the index."""
        numbers = self._checked_all(indices)
        found = np.zeros(len(numbers), np.int64)
        for part, shard, rows, places in self._groups(numbers):
            found[places] = part.shards.sidecar(shard).bytes_of(rows)
        return found

    # Getting samples

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._sliced(index)
        part, number, row = self._locate(self._checked(index))
        sample = part.shards.open(number).sample(row)
        return apply_steps(part.steps, sample, None) if part.steps else sample

    def batch(self, indices: ArrayLike, *, seeds: Sequence[int] | None = None) -> list[Any]:
        """Several samples at once, in the order asked for; of remote shards, few requests fetch them all.

        `seeds` are for the steps that draw random numbers, one for each sample.
        """
        found, steps = self._fetched(indices)
        if not any(steps):
            return found
        drawn: Sequence[int | None] = [None] * len(found) if seeds is None else seeds
        return [
            apply_steps(each, sample, seed) for sample, each, seed in zip(found, steps, drawn, strict=True)
        ]

    def fetch(self, indices: ArrayLike) -> list[tuple[Sample, tuple[Each, ...]]]:
        """Several samples as they are in the shards, each with the steps that are still to be done."""
        return list(zip(*self._fetched(indices), strict=True))

    def _fetched(self, indices: ArrayLike) -> tuple[list[Sample], list[tuple[Each, ...]]]:
        """Several samples as they are in the shards, and for each the steps that are still to be done."""
        numbers = self._checked_all(indices)
        if table := self._table():
            return table.samples(numbers), [self.parts[0].steps] * len(numbers)
        if len(numbers) < FEW * len(self._ends_list):
            one_by_one = self._fetch_each(numbers.tolist())
            if one_by_one is not None:
                return one_by_one
        found: list[Any] = [None] * len(numbers)
        steps: list[tuple[Each, ...]] = [()] * len(numbers)
        groups = list(self._groups(numbers))
        for (part, _, _, places), samples in zip(groups, _each_read(groups), strict=True):
            to_do = part.steps
            for place, sample in zip(places.tolist(), samples, strict=True):
                found[place] = sample
                if to_do:
                    steps[place] = to_do
        return found, steps

    def _table(self) -> Table | None:
        """All samples in one table, if they are few and alike, and their shards open anyway."""
        if self._joined is None:
            if len(self) > TABLE or any(part.steps != self.parts[0].steps for part in self.parts):
                self._joined = False
                return None
            opened = [part.shards.open_now(part.numbers.tolist(), self) for part in self.parts]
            if not all(opened):
                return None  # not yet
            shards = [shard for some in opened for shard in some or ()]
            self._joined = Table.of(shards, [rows for part in self.parts for rows in part.rows]) or False
        return self._joined or None

    def forget_table(self) -> None:
        """Let go of the table, and of the shards that it keeps."""
        self._joined = None

    def _fetch_each(self, indices: list[int]) -> tuple[list[Sample], list[tuple[Each, ...]]] | None:
        """The same one by one, unless each would cost a request of its own."""
        ends, segments = self._ends_list, self._segments
        found, steps, readers = [], [], {}
        for index in indices:
            segment = bisect.bisect_right(ends, index)
            if segment not in readers:
                part, number, rows, begin = segments[segment]
                shard = part.shards.open(number)
                if not shard.local:
                    return None
                readers[segment] = shard.sample, rows, begin, part.steps
            read, rows, begin, to_do = readers[segment]
            row = index - begin
            found.append(read(row if rows is None else int(rows[row])))
            steps.append(to_do)
        return found, steps

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """What torch calls to fetch a batch at once."""
        if len(indices) and isinstance(indices[0], SeededIndex):
            return self.batch(indices, seeds=[getattr(index, "seed", 0) for index in indices])
        return self.batch(indices)

    def get(self, key: str) -> Any:
        """The sample with this key; KeyError if there is none."""
        for part in self.parts:
            numbers = part.numbers.tolist()
            sidecars = part.shards.sidecars(numbers)
            for number, sidecar, rows in zip(numbers, sidecars, part.rows, strict=True):
                row = sidecar.find(key)
                if row is not None and (rows is None or row in rows):
                    return apply_steps(part.steps, part.shards.open(number).sample(row), None)
        raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        for part in self.parts:
            for number, rows in zip(part.numbers.tolist(), part.rows, strict=True):
                shard = part.shards.open(number)
                samples = iter(shard) if rows is None else shard.some(rows)
                yield from (apply_steps(part.steps, s, None) for s in samples) if part.steps else samples

    def _then(self, step: Each) -> Self:
        return self.of_parts([replace(part, steps=(*part.steps, step)) for part in self.parts])

    # Which samples there are

    def where(self, condition: str) -> Self:
        """Keep the samples of which the index says so: `where("width >= 512 and lang = 'en'")`."""
        return self.of_parts(by_condition(self.parts, parse_where(condition)))

    def with_keys(self, keys: Collection[str]) -> Self:
        """Keep the samples with these keys, in the order of the shards."""
        wanted = keys if isinstance(keys, Set) else frozenset(keys)
        return self.of_parts([by_keys(part, wanted) for part in self.parts])

    def split(self, *, salt: str = "", **shares: float) -> Any:
        """Split by a hash of the key: `train, val = ds.split(train=0.9, val=0.1)`, or `ds.split(…).train`.

        A sample stays on its side when the dataset grows or is packed anew. Another `salt` is another split.
        """
        if not shares or min(shares.values()) <= 0 or sum(shares.values()) > 1 + 1e-9:
            raise ValueError(f"shares are positive and add up to 1 at most, got {shares}")
        edges = [min(round(edge * 2**64), 2**64) for edge in np.cumsum([0.0, *shares.values()]).tolist()]
        if sum(shares.values()) > 1 - 1e-9:
            edges[-1] = 2**64
        bounds = list(itertools.pairwise(edges))
        pieces = [by_key_hash(part, bounds, salt) for part in self.parts]
        return namedtuple("Split", shares)(*[self.of_parts(parts) for parts in zip(*pieces, strict=True)])

    def __add__(self, other: Dataset) -> Self:
        if not isinstance(other, Dataset):
            return NotImplemented
        return self.of_parts([*self.parts, *other.parts])

    def repeat(self, times: float) -> Mix:
        """Take every sample so many times an epoch, in a new order each time; 2.5 times is allowed."""
        from tarmac.exact.mix import Mix

        return Mix._of([self], [round(len(self) * times)])

    def choose(self, samples: int) -> Mix:
        """Take so many samples an epoch, each epoch going on where the last one stopped."""
        from tarmac.exact.mix import Mix

        return Mix._of([self], [operator.index(samples)])

    def _sliced(self, index: slice) -> Self:
        start, stop, step = index.indices(len(self))
        if step < 0:
            raise ValueError("a dataset is sliced forwards; use batch() for another order")
        parts, first = [], 0
        for part in self.parts:
            parts.append(by_numbers(part, start - first, stop - first, step))
            first += part.samples
        return self.of_parts(parts)

    # How it is done

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts}

    def segments_of(self, indices: Integers) -> Integers:
        """For each sample the number of its shard, counted over all parts."""
        return np.searchsorted(self._ends, indices, side="right")

    def shard_of(self, segment: int) -> tuple[Part, int]:
        """The part that a shard belongs to, and its number there."""
        return self._segments[segment][:2]

    def close(self) -> None:
        """Let go of the shards that are open; they open again when needed."""
        for part in self.parts:
            part.shards.close()

    def after_fork(self) -> None:
        """Let go of what a forked process must not share with its parent."""
        for part in self.parts:
            part.shards.after_fork()

    @cached_property
    def _ends(self) -> Integers:
        return np.cumsum(self.lengths)

    @cached_property
    def _ends_list(self) -> list[int]:
        return self._ends.tolist()  # type: ignore[no-any-return]

    @cached_property
    def _segments(self) -> list[tuple[Part, int, Rows | None, int]]:
        """For each shard its part, its number there, which rows of it, and with which sample it begins."""
        begins = iter([0, *self._ends_list])
        return [
            (part, number, rows, next(begins))
            for part in self.parts
            for number, rows in zip(part.numbers.tolist(), part.rows, strict=True)
        ]

    def _checked(self, index: int) -> int:
        number, length = operator.index(index), len(self)
        if not -length <= number < length:
            raise IndexError(f"there are {length} samples, numbered from 0; asked for {number}")
        return number + length if number < 0 else number

    def _checked_all(self, indices: ArrayLike) -> Integers:
        found = np.asarray(indices)
        if found.ndim > 1:
            raise TypeError(f"samples are asked for by a row of numbers, got an array of shape {found.shape}")
        if not found.size:
            return np.zeros(0, np.int64)
        if found.dtype.kind not in "iu":
            raise TypeError(f"samples are asked for by number, got an array of {found.dtype}")
        length, lowest, highest = len(self), found.min(), found.max()
        if not -length <= lowest <= highest < length:
            raise IndexError(f"there are {length} samples, numbered from 0; asked for {found}")
        found = found.reshape(-1).astype(np.int64, copy=False)
        return found if lowest >= 0 else np.where(found < 0, found + length, found)

    def _locate(self, index: int) -> tuple[Part, int, int]:
        """The part, the shard in it and the row of the shard."""
        part, number, rows, begin = self._segments[bisect.bisect_right(self._ends_list, index)]
        return part, number, index - begin if rows is None else int(rows[index - begin])

    def _groups(self, indices: Integers) -> Iterator[_Group]:
        """Samples of one shard together: part, shard, rows, and where in the batch they belong."""
        segments = np.searchsorted(self._ends, indices, side="right")
        order = np.argsort(segments, kind="stable")
        cuts = np.flatnonzero(np.diff(segments[order])) + 1
        for places in np.split(order, cuts) if len(order) else ():
            part, number, chosen, begin = self._segments[int(segments[places[0]])]
            rows = indices[places] - begin
            yield part, number, rows if chosen is None else chosen[rows].astype(np.int64), places

    def __repr__(self) -> str:
        shards, steps = len(self.lengths), [type(step).__name__ for step in self.parts[0].steps]
        return f"<Dataset of {len(self)} samples in {shards} shards{''.join(f' | {name}' for name in steps)}>"


def _each_read(groups: list[_Group]) -> Iterator[list[Sample]]:
    """The samples of each group; of shards in a store, several at a time."""

    def read(group: _Group) -> list[Sample]:
        part, shard, rows, _ = group
        return part.shards.open(shard).samples(rows)

    if len(groups) < 2 or all(is_local(part.shards.url(shard)) for part, shard, _, _ in groups):
        return map(read, groups)
    return in_threads(read, groups, REQUESTS)
