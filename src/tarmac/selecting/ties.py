"""Put rows whose keys are equal in an order that depends on their values alone, and drop duplicates among them.

Rows arrive in the order of their hashes. Those with the same hash are sorted by all of their columns, here and not in
SQL, because engines compare values differently. Rows that are equal in all columns may change places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tarmac.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

MOST = 1_000_000
"""Rows of one key that are sorted in memory."""


@dataclass
class Ties:
    """Resolve ties in a stream of batches that have the column `hash`."""

    hash: str
    order: Sequence[str]
    """The columns to compare, those of `dedup` first."""
    dedup: Sequence[str] = ()
    """The columns whose equality makes rows duplicates."""
    dropped: int = 0
    """Duplicates so far."""

    def resolved(self, batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yield the rows in their final order."""
        import pyarrow as pa

        held: pa.Table | None = None
        for batch in batches:
            table = batch if held is None else pa.concat_tables([held, batch])
            same = _equal_to_previous(table, [self.hash])
            last = int(np.flatnonzero(~same)[-1]) if len(same) else 0
            held = table.slice(last)
            if len(held) > MOST:
                what = f"more than {MOST} rows have the same key."
                raise UsageError(what, field="key", hint="columns that tell rows apart, such as URL.")
            if last:
                yield self._settled(table.slice(0, last), same[:last])
        if held is not None and len(held):
            yield self._settled(held, _equal_to_previous(held, [self.hash]))

    def _settled(self, table: pa.Table, same: NDArray[np.bool_]) -> pa.Table:
        if not same.any():
            return table
        tied = same.copy()
        tied[:-1] |= same[1:]
        rows = np.flatnonzero(tied)
        some = table.take(rows).combine_chunks()
        order = _sorted(some, [self.hash, *self.order])
        some = some.take(order)
        keep = np.ones(len(rows), bool)
        if self.dedup:
            keep = ~_equal_to_previous(some, [self.hash, *self.dedup])
            self.dropped += int((~keep).sum())
        positions, kept = np.arange(len(table)), np.ones(len(table), bool)
        positions[rows] = rows[order]
        kept[rows] = keep
        return table.take(positions[kept])


def _equal_to_previous(table: pa.Table, columns: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows have the same values as the row before; two nulls are the same, and so are two NaN."""
    import pyarrow.compute as pc

    same = np.zeros(len(table), bool)
    if len(table) < 2:
        return same
    same[1:] = True
    for name in columns:
        values = _comparable(table[name].combine_chunks())
        one, other = values.slice(1), values.slice(0, len(values) - 1)
        equal = pc.fill_null(pc.equal(one, other), fill_value=False).to_numpy(zero_copy_only=False)
        missing = _missing(values)
        same[1:] &= equal | ((missing[1:] == missing[:-1]) & (missing[1:] > 0))
    return same


def _missing(values: Any) -> NDArray[np.int8]:
    """Return 2 for a null, 1 for a NaN, and otherwise 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = np.zeros(len(values), np.int8)
    if pa.types.is_floating(values.type):
        codes[pc.fill_null(pc.is_nan(values), fill_value=False).to_numpy(zero_copy_only=False)] = 1
    if values.null_count:
        codes[pc.is_null(values).to_numpy(zero_copy_only=False)] = 2
    return codes


def _sorted(table: pa.Table, columns: Sequence[str]) -> NDArray[np.int64]:
    """Return the order of the rows by these columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = [_comparable(table[name]) for name in columns]
    names = [str(number) for number in range(len(keys))]
    order = pc.sort_indices(pa.table(keys, names=names), sort_keys=[(name, "ascending") for name in names])
    numbers: NDArray[np.int64] = order.to_numpy().astype(np.int64)
    return numbers


def _comparable(values: Any) -> Any:
    """Return values that Arrow can sort and compare: nested ones as JSON text."""
    import pyarrow as pa

    if not pa.types.is_nested(values.type):
        return values
    return pa.array([None if each is None else json.dumps(each, default=str) for each in values.to_pylist()])
