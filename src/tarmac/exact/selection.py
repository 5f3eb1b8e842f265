"""Which samples a dataset is made of: some rows of some shards, in order."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tarmac.errors import IndexingError, TarmacError
from tarmac.exact.shardset import ShardSet
from tarmac.indexing.meta import names_in
from tarmac.indexing.promote import common_types
from tarmac.indexing.where import Condition
from tarmac.steps.stage import Each

__all__ = ["by_condition", "by_key_hash", "by_keys", "by_numbers", "Part", "whole"]

Integers = NDArray[np.int64]
Rows = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some rows of some shards of one manifest, and what is done to each sample."""

    shards: ShardSet
    numbers: Integers
    """Which shards, in which order."""
    lengths: Integers
    """How many samples of each."""
    rows: Sequence[Rows | None]
    """Which samples of each; None for all."""
    steps: tuple[Each, ...] = ()

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return int(self.lengths.sum())

    def fingerprint(self) -> str:
        """A hash of which samples these are, wherever their shards lie."""
        digest = xxhash.xxh3_128(self.shards.manifest.fingerprint.encode())
        there = self.lengths > 0  # shards without samples say nothing
        digest.update(self.numbers[there].tobytes())
        digest.update(self.lengths[there].tobytes())
        for rows in self.rows:
            if rows is not None:
                digest.update(rows.tobytes())
        return digest.hexdigest()


def whole(shards: ShardSet) -> Part:
    """Every sample of every shard."""
    lengths = np.array([shard.samples for shard in shards.manifest.shards], np.int64)
    return Part(shards, np.arange(len(lengths)), lengths, (None,) * len(lengths))


def _narrowed(part: Part, chosen: Iterable[Rows | None]) -> Part:
    """Keep of each shard the rows that are chosen, in order; None keeps what there is."""
    rows, lengths = [], []
    for new, old, length in zip(chosen, part.rows, part.lengths.tolist(), strict=True):
        same = new is None or len(new) == length
        rows.append(old if same else new)
        lengths.append(length if new is None else len(new))
    kept = np.flatnonzero(lengths)
    return replace(
        part,
        numbers=part.numbers[kept],
        lengths=np.array(lengths, np.int64)[kept],
        rows=[rows[number] for number in kept.tolist()],
    )


def by_numbers(part: Part, start: int, stop: int, step: int) -> Part:
    """The samples from `start` up to `stop`, every `step`-th; a step is positive."""

    def chosen() -> Iterator[Rows | None]:
        ends = np.cumsum(part.lengths)
        for begin, end, old in zip((ends - part.lengths).tolist(), ends.tolist(), part.rows, strict=True):
            if start <= begin and end <= stop and step == 1:
                yield None
                continue
            after = max(begin - start, 0)  # how far into the slice this shard begins
            first = start + -(-after // step) * step
            inside = np.arange(first - begin, min(stop, end) - begin, step).astype(np.int32)
            yield inside if old is None else old[inside]

    return _narrowed(part, chosen())


def by_condition(parts: Sequence[Part], condition: Condition) -> list[Part]:
    """The samples for which the index says that the condition holds.

    None at all because a column has no values, as one with a slip in its name has none, is an error.
    """
    found = [_fulfilling(part, condition) for part in parts]
    samples = sum(part.samples for part in parts)
    if samples and not any(part.samples for part in found):
        values, names = Counter[str](), dict[str, None]()
        for part in parts:
            for (_, table), rows in zip(_tables(part, condition), part.rows, strict=True):
                resolved = condition.resolve(table.schema.names)
                for name in condition.compared:
                    column = table.column(resolved[name])
                    values[name] += len(column.drop_null() if rows is None else column.take(rows).drop_null())
        if any(not values[name] for name in condition.compared):
            for part in parts:
                names |= dict.fromkeys(_names(part))
            problem = condition.missing_column(values, samples, names)
            if problem is not None:
                raise problem
    return found


def _names(part: Part) -> Iterator[str]:
    """What could have been asked for instead: columns of an index, and what is in a sample."""
    for number, rows in zip(part.numbers.tolist()[:1], part.rows, strict=False):
        yield from part.shards.sidecar(number).metadata
        with contextlib.suppress(TarmacError):  # a hint is not worth another error
            yield from names_in(part.shards.open(number).sample(0 if rows is None else int(rows[0])))


def _fulfilling(part: Part, condition: Condition) -> Part:
    # The same column may have been taken for whole numbers in one shard and for text in another.
    types = common_types(table for _, table in _tables(part, condition))
    types.pop("key", None)  # text or bytes, which conditions see as text alike

    def chosen() -> Iterator[Rows]:
        for (url, table), old in zip(_tables(part, condition), part.rows, strict=True):
            try:
                mask = condition.mask(table, types)
            except IndexingError as error:
                error.at(url=url)
                raise
            yield _of_mask(old, mask)

    return _narrowed(part, chosen())


def _tables(part: Part, condition: Condition) -> Iterator[tuple[str, Any]]:
    """Of each shard its URL and the columns that a condition asks for."""
    import pyarrow as pa

    numbers = part.numbers.tolist()
    for number, sidecar in zip(numbers, part.shards.sidecars(numbers), strict=True):
        url = part.shards.url(number)
        fields = [name for name in condition.columns if name.startswith("has:")]
        columns = {name: pa.array(sidecar.has(name[4:])) for name in fields}
        try:
            there = [*fields, "key", *sidecar.metadata]
            for name in {*condition.resolve(there).values(), "key"} - columns.keys():
                columns[name] = sidecar.column(name)
        except IndexingError as error:
            error.at(url=url)
            raise
        yield url, pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def by_key_hash(part: Part, bounds: Sequence[tuple[int, int]], salt: str) -> list[Part]:
    """For each pair of bounds the samples whose key hashes into it, out of 2**64.

    A sample keeps its place when the dataset grows, is copied, or is packed anew.
    """
    digest, seed = xxhash.xxh3_64_intdigest, xxhash.xxh3_64_intdigest(salt.encode())
    chosen: list[list[Rows]] = [[] for _ in bounds]
    for sidecar, old in zip(part.shards.sidecars(part.numbers.tolist()), part.rows, strict=True):
        keys = [key.encode("utf-8", "surrogateescape") for key in sidecar.keys(None)]
        hashes = np.array([digest(key, seed) for key in keys], np.uint64)
        for rows, (low, high) in zip(chosen, bounds, strict=True):
            rows.append(_of_mask(old, (hashes >= low) & (hashes <= high - 1)))
    return [_narrowed(part, rows) for rows in chosen]


def _of_mask(old: Rows | None, mask: NDArray[np.bool_]) -> Rows:
    return np.flatnonzero(mask).astype(np.int32) if old is None else old[mask[old]]


def by_keys(part: Part, keys: Collection[str]) -> Part:
    """The samples with these keys."""

    def chosen() -> Iterator[Rows]:
        for sidecar, old in zip(part.shards.sidecars(part.numbers.tolist()), part.rows, strict=True):
            mask = np.fromiter((key in keys for key in sidecar.keys(None)), np.bool_, len(sidecar))
            yield _of_mask(old, mask)

    return _narrowed(part, chosen())
