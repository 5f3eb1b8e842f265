"""Find the rows whose key has occurred before, in bounded memory.

Keys that increase from row to row cannot repeat, so most jobs need no more than that. Otherwise keys go to files by a
hash, so that equal keys are in the same file, and each file is compared in memory. The keys themselves are
compared, not their hashes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tarmac.limits import MIB
from tarmac.tokens.rows import Batch, Parts, Position, key_values
from tarmac.tools.mappers.records import Array
from tarmac.tools.workdir import disk_errors

BUCKET_BYTES = 16 * MIB
"""Bytes of keys that are compared at a time, about."""
MAX_BUCKETS = 512
RANGE = 1 << 21
"""Rows whose repeated ones are listed in one file."""
_OVERHEAD = 16
"""Bytes that a key takes besides its own."""
_PENDING = 1 << 16
"""Rows that wait for their files."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass
class KeyOrder:
    """Whether the keys of all rows are known to be different, because they increase."""

    increasing: bool = True
    """Over all rows."""
    within: set[int] = field(default_factory=set)
    """Parts whose keys do not increase."""
    _last: bytes | None = None
    _ranges: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    """The first and last key of each part."""

    def add(self, part: int, batch: Batch) -> None:
        """Add the next rows of a part."""
        import pyarrow.compute as pc

        keys = batch.column("key")
        if not len(keys):
            return
        first, last = keys[0].as_py(), keys[-1].as_py()
        known = self._ranges.get(part)
        inside = len(keys) == 1 or pc.all(pc.less(keys[:-1], keys[1:])).as_py()
        if not inside or (known is not None and known[1] >= first):
            self.within.add(part)
        self.increasing = self.increasing and inside and (self._last is None or self._last < first)
        self._last = last
        self._ranges[part] = (first if known is None else known[0], last)

    @property
    def unique(self) -> bool:
        """Whether no key can occur twice."""
        if self.increasing:
            return True
        ranges = sorted(self._ranges.values())
        return not self.within and all(one[1] < other[0] for one, other in itertools.pairwise(ranges))


@dataclass
class Duplicates:
    """The numbers of repeated rows, in files of a directory by range."""

    directory: str
    count: int = 0
    _range: int = -1
    _kept: Array | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"directory": self.directory, "count": self.count}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def add(self, rows: Array) -> None:
        """Add repeated rows."""
        self.count += len(rows)
        for number in np.unique(rows // RANGE):
            path = self._path(int(number))
            with disk_errors(path), open(path, "ab") as file:
                file.write(rows[rows // RANGE == number].astype(np.int64).tobytes())

    def mask(self, start: int, count: int) -> Array | None:
        """Return which rows are kept, or None for all."""
        if not self.count:
            return None
        masks, row = [], start
        while row < start + count:
            kept = self._load(row // RANGE)
            stop = min(start + count, (row // RANGE + 1) * RANGE)
            masks.append(np.ones(stop - row, bool) if kept is None else kept[row % RANGE :][: stop - row])
            row = stop
        whole = np.concatenate(masks)
        return None if whole.all() else whole

    def _path(self, number: int) -> str:
        return os.path.join(self.directory, f"repeated-{number}")

    def _load(self, number: int) -> Array | None:
        if number != self._range:
            self._range, self._kept = number, None
            if os.path.exists(self._path(number)):
                self._kept = np.ones(RANGE, bool)
                self._kept[np.fromfile(self._path(number), np.int64) % RANGE] = False
        return self._kept


def find_duplicates(parts: Parts, key_bytes: int, rows: int, directory: str, repeated: Duplicates) -> None:
    """Add the rows whose key occurred before; `key_bytes` and `rows` say how much there is to compare."""
    count = min(max(-(-(key_bytes + _OVERHEAD * rows) // BUCKET_BYTES), 1), MAX_BUCKETS)
    _compare(_keys(parts.located()), count, directory, repeated)


def find_in_part(parts: Parts, start: Position, stop: int, directory: str, repeated: Duplicates) -> None:
    """Add the rows of one part whose key occurred before in that part."""
    size = (stop - start.row) * 4 * _OVERHEAD
    count = min(max(-(-size // BUCKET_BYTES), 1), MAX_BUCKETS)
    _compare(_keys(parts.located(start, stop)), count, directory, repeated)


def _keys(located: Iterable[tuple[Position, Batch]]) -> Iterator[tuple[Any, Array]]:
    """Yield keys and their row numbers."""
    for at, batch in located:
        yield batch.column("key"), np.arange(at.row, at.row + len(batch))


def _compare(keys: Iterator[tuple[Any, Array]], buckets: int, directory: str, repeated: Duplicates) -> None:
    paths = [os.path.join(directory, f"keys-{number}") for number in range(buckets)]
    try:
        _spill(keys, paths)
        for path in paths:
            repeated.add(_repeated(path))
    finally:
        for path in paths:
            if os.path.exists(path):
                os.unlink(path)


def _spill(keys: Iterator[tuple[Any, Array]], paths: list[str]) -> None:
    """Write keys with their rows to files, equal keys to the same."""
    import pyarrow as pa

    schema = pa.schema([("key", pa.binary()), ("row", pa.int64())])
    held: list[Batch] = []

    def flush() -> None:
        if not held:
            return
        table = pa.Table.from_batches(held).combine_chunks().to_batches()[0]
        held.clear()
        numbers = hashes(table.column("key")) % np.uint64(len(paths))
        order = np.argsort(numbers, kind="stable")  # rows stay in their order
        sizes = np.bincount(numbers.astype(np.int64), minlength=len(paths))
        ordered, begin = table.take(pa.array(order)), 0
        for path, size in zip(paths, sizes.tolist(), strict=True):
            if size:
                content = ordered.slice(begin, size).serialize()
                with disk_errors(path), open(path, "ab") as file:
                    file.write(content.size.to_bytes(8, "little"))
                    file.write(content)
            begin += size

    for array, rows in keys:
        held.append(pa.RecordBatch.from_arrays([array, pa.array(rows)], schema=schema))
        if sum(map(len, held)) >= _PENDING:
            flush()
    flush()


def _repeated(path: str) -> Array:
    """Return the rows of a file whose key occurred before in it."""
    import pyarrow as pa

    if not os.path.exists(path):
        return np.zeros(0, np.int64)
    schema = pa.schema([("key", pa.binary()), ("row", pa.int64())])
    batches = []
    with open(path, "rb") as file:
        while head := file.read(8):
            content = file.read(int.from_bytes(head, "little"))
            batches.append(pa.ipc.read_record_batch(pa.py_buffer(content), schema))
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    keys = table.column("key").chunk(0)
    rows = np.frombuffer(table.column("row").chunk(0).buffers()[1], np.int64, len(keys))
    numbers = keys.dictionary_encode().indices
    # The number of a key is new where it is larger than all before it.
    indices = np.frombuffer(numbers.buffers()[1], np.int32, len(keys))
    before = np.maximum.accumulate(indices)
    again = np.ones(len(keys), bool)
    again[0] = False
    again[1:] = indices[1:] <= before[:-1]
    return rows[again]


def hashes(keys: Any) -> Array:
    """Return a hash of each key, which only spreads them."""
    values = key_values(keys)
    lengths = values.lengths
    result = lengths.astype(np.uint64) * _MULTIPLIER
    starts = values.offsets[:-1]
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        width = -(-int(length) // 8) * 8
        if not width:
            continue
        text = np.zeros((len(rows), width), np.uint8)
        text[:, :length] = values.values[starts[rows][:, None] + np.arange(length)]
        mixed = result[rows]
        for word in text.view(np.uint64).T:
            mixed = (mixed ^ word) * _MULTIPLIER
            mixed ^= mixed >> np.uint64(29)
        result[rows] = mixed
    return result
