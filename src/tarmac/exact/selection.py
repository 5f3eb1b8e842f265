"""Selections: some rows of some shards, in order."""

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
from tarmac.exact.types import Rows
from tarmac.indexing.meta import names_in
from tarmac.indexing.promote import common_types
from tarmac.indexing.sidecar import Sidecar
from tarmac.indexing.where import Condition
from tarmac.runtime.types import Integers
from tarmac.samples.splits import key_hasher
from tarmac.steps.stage import Each


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Some rows of some shards of one manifest, and the steps for each sample."""

    shards: ShardSet
    numbers: Integers
    """The shards, in order."""
    lengths: Integers
    """The number of samples from each shard."""
    rows: Sequence[Rows | None]
    """The selected rows of each shard; None for all."""
    steps: tuple[Each, ...] = ()

    def indexes(self) -> Iterator[tuple[int, Sidecar, Rows | None]]:
        """Yield the number, the index and the selected rows of each shard."""
        numbers = self.numbers.tolist()
        return zip(numbers, self.shards.sidecars(numbers), self.rows, strict=True)

    @property
    def used(self) -> list[int]:
        """The shards that have samples."""
        used: list[int] = self.numbers[self.lengths > 0].tolist()
        return used

    @property
    def samples(self) -> int:
        """The number of samples."""
        return int(self.lengths.sum())

    def fingerprint(self) -> str:
        """Return a hash of the selected samples, independent of the location of their shards."""
        digest = xxhash.xxh3_128(self.shards.manifest.fingerprint.encode())
        nonempty = self.lengths > 0
        digest.update(self.numbers[nonempty].tobytes())
        digest.update(self.lengths[nonempty].tobytes())
        for rows in self.rows:
            if rows is not None:
                digest.update(rows.tobytes())
        return digest.hexdigest()


def whole(shards: ShardSet) -> Part:
    """Return all samples of all shards."""
    lengths = np.array([shard.samples for shard in shards.manifest.shards], np.int64)
    return Part(shards, np.arange(len(lengths)), lengths, (None,) * len(lengths))


def _narrowed(part: Part, selected: Iterable[Rows | None]) -> Part:
    """Keep the selected rows of each shard, in order; None keeps all current rows."""
    rows, lengths = [], []
    for new, old, length in zip(selected, part.rows, part.lengths.tolist(), strict=True):
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
    """Return the samples from `start` to `stop` with a positive `step`."""

    def selected() -> Iterator[Rows | None]:
        ends = np.cumsum(part.lengths)
        for begin, end, old in zip((ends - part.lengths).tolist(), ends.tolist(), part.rows, strict=True):
            if start <= begin and end <= stop and step == 1:
                yield None
                continue
            skipped = max(begin - start, 0)  # samples of the slice range before this shard
            first = start + -(-skipped // step) * step
            inside = np.arange(first - begin, min(stop, end) - begin, step).astype(np.int32)
            yield inside if old is None else old[inside]

    return _narrowed(part, selected())


def by_mask(parts: Sequence[Part], mask: NDArray[np.bool_]) -> list[Part]:
    """Return the samples for which the mask, which has an item for each sample of all parts, is true."""
    lengths = [length for part in parts for length in part.lengths.tolist()]
    pieces = iter(np.split(mask, np.cumsum(lengths)[:-1]) if lengths else ())

    def selected(part: Part) -> Iterator[Rows]:
        for old, piece in zip(part.rows, pieces, strict=False):
            rows = np.flatnonzero(piece).astype(np.int32)
            yield rows if old is None else old[rows]

    return [_narrowed(part, selected(part)) for part in parts]


def by_condition(parts: Sequence[Part], condition: Condition) -> list[Part]:
    """Return the samples that meet a condition on index columns.

    Raise if no sample does because a column has no values, as with a misspelled name.
    """
    matches = [_matching(part, condition) for part in parts]
    samples = sum(part.samples for part in parts)
    if samples and not any(part.samples for part in matches):
        values, names = Counter[str](), dict[str, None]()
        for part in parts:
            for _, table, rows in _tables(part, condition):
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
    return matches


def _names(part: Part) -> Iterator[str]:
    """Yield names for a hint: columns of an index, and the names in a sample."""
    for number, rows in zip(part.numbers.tolist()[:1], part.rows, strict=False):
        yield from part.shards.sidecar(number).metadata
        with contextlib.suppress(TarmacError):  # a hint is not worth another error
            yield from names_in(part.shards.open(number).sample(0 if rows is None else int(rows[0])))


def _matching(part: Part, condition: Condition) -> Part:
    # A column can have been indexed as integers in one shard and as text in another.
    types = common_types(table for _, table, _ in _tables(part, condition))
    types.pop("key", None)  # text or bytes; conditions see both as text

    def selected() -> Iterator[Rows]:
        for url, table, old in _tables(part, condition):
            try:
                mask = condition.mask(table, types)
            except IndexingError as error:
                error.at(url=url)
                raise
            yield _masked(old, mask)

    return _narrowed(part, selected())


def _tables(part: Part, condition: Condition) -> Iterator[tuple[str, Any, Rows | None]]:
    """Yield the URL of each shard, a record batch of the columns of a condition, and the selected rows."""
    import pyarrow as pa

    for number, sidecar, rows in part.indexes():
        url = part.shards.url(number)
        fields = [name for name in condition.columns if name.startswith("has:")]
        columns = {name: pa.array(sidecar.has(name[4:])) for name in fields}
        try:
            available = [*fields, "key", *sidecar.metadata]
            for name in {*condition.resolve(available).values(), "key"} - columns.keys():
                columns[name] = sidecar.column(name)
        except IndexingError as error:
            if sidecar.facts.rows and (error.hint or "").startswith("rebuild"):
                # The index of rows has all that it can have; that of sequences has no columns.
                error.hint = None if sidecar.metadata else "tokens.where(CONDITION).pack(SIZE)."
            error.at(url=url)
            raise
        yield url, pa.RecordBatch.from_arrays(list(columns.values()), list(columns)), rows


def by_key_hash(part: Part, bounds: Sequence[tuple[int, int]], salt: str) -> list[Part]:
    """Return for each pair of bounds the samples whose key hashes into it, out of 2**64.

    The hash depends on key and salt alone, so a sample stays in its split when the dataset grows.
    """
    hash_key = key_hasher(salt)
    selected: list[list[Rows]] = [[] for _ in bounds]
    for _, sidecar, old in part.indexes():
        hashes = np.array([hash_key(key) for key in sidecar.keys(None)], np.uint64)
        for rows, (low, high) in zip(selected, bounds, strict=True):
            rows.append(_masked(old, (hashes >= low) & (hashes <= high - 1)))
    return [_narrowed(part, rows) for rows in selected]


def _masked(old: Rows | None, mask: NDArray[np.bool_]) -> Rows:
    return np.flatnonzero(mask).astype(np.int32) if old is None else old[mask[old]]


def by_keys(part: Part, keys: Collection[str]) -> Part:
    """Return the samples with these keys."""

    def selected() -> Iterator[Rows]:
        for _, sidecar, old in part.indexes():
            mask = np.fromiter((key in keys for key in sidecar.keys(None)), np.bool_, len(sidecar))
            yield _masked(old, mask)

    return _narrowed(part, selected())
