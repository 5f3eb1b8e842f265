"""Read the rows of parts as Arrow batches, from any position, and cut them into batches of other sizes.

A batch has the column `key` and one for each output, as in a record. Rows stay in Arrow arrays: nothing here touches a
single row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tarmac.errors import JobError, TarmacError
from tarmac.limits import Limits
from tarmac.storage import StorageOptions, open_read
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar import TarOptions, read_members
from tarmac.tar.header import padded
from tarmac.tools.mappers.contract import Column
from tarmac.tools.mappers.records import FIELD, Array, Keys, Ragged, Records, Schema, parse_record

Batch = Any
"""A `pyarrow.RecordBatch`; its module is imported when it is needed."""
Rows = tuple[Batch, Any]
"""Rows, and the bytes of the record that they are, if they are a whole record."""
Mask = Callable[[int, int], Array | None]
"""Which of the rows from a number on, of this many, are kept; None for all."""
_OWN = TarOptions(limits=Limits(member_bytes=1 << 62))
"""Parts hold what a job wrote, of any size."""
_FIELD = f".{FIELD}".encode()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of an input shard: a shard of records, or the chunks of one that is not finished."""

    name: str
    """The name of the input shard, without directory and extension."""
    urls: tuple[str, ...]
    rows: int
    """How many rows the job counted."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a row is: its part, the file of the part, the record in the file, and the row in the record."""

    part: int = 0
    file: int = 0
    offset: int = 0
    """Of the header of the record."""
    skip: int = 0
    """Rows of the record before it."""
    row: int = 0
    """Its number among the rows of all parts."""


@dataclass(frozen=True)
class Parts:
    """Parts with the same columns, in order."""

    parts: Sequence[Part]
    schema: Schema
    storage: StorageOptions = DEFAULT_STORAGE
    mapped: bool = True
    """Whether local files are mapped. Pages of a map stay in memory until the end of its file."""

    def rows(
        self, start: Position = Position(), stop: int | None = None, mask: Mask | None = None
    ) -> Iterator[Rows]:
        """Yield the rows from a position on, up to the row `stop` of all; those that the mask excludes are left out."""
        for at, batch, record in self._read(start, stop):
            kept = mask(at.row, len(batch)) if mask is not None else None
            yield (batch, record) if kept is None else (taken(batch, np.flatnonzero(kept)), None)

    def located(
        self, start: Position = Position(), stop: int | None = None
    ) -> Iterator[tuple[Position, Batch]]:
        """Yield batches, each with the position of its first row."""
        for at, batch, _ in self._read(start, stop):
            yield at, batch

    def _read(self, start: Position, stop: int | None) -> Iterator[tuple[Position, Batch, Any]]:
        row, skip, reader = start.row, start.skip, _Reader(self.schema, self.storage, self.mapped)
        for number in range(start.part, len(self.parts)):
            part = self.parts[number]
            first = start.file if number == start.part else 0
            for file in range(first, len(part.urls)):
                begin = start.offset if (number, file) == (start.part, start.file) else 0
                for at, batch, record in reader.records(part.urls[file], begin):
                    if stop is not None and row >= stop:
                        return
                    last = len(batch) if stop is None else min(len(batch), skip + stop - row)
                    whole = last - skip == len(batch)
                    cut = batch if whole else batch.slice(skip, last - skip)
                    yield Position(number, file, at, skip, row), cut, record if whole else None
                    row += len(cut)
                    skip = 0


def first_schema(parts: Sequence[Part], storage: StorageOptions = DEFAULT_STORAGE) -> Schema | None:
    """Return the schema of the first record; None if there is none."""
    for part in parts:
        for url in part.urls:
            for _, content in _members(url, 0, storage):
                return _at(url, parse_record, content)[0]
    return None


@dataclass
class _Reader:
    """Reads records of one schema. Most records have its very bytes, so that it need not be parsed again."""

    schema: Schema
    storage: StorageOptions
    mapped: bool
    _known: Any = None
    """The Arrow schema of the records before."""

    def records(self, url: str, begin: int) -> Iterator[tuple[int, Batch, Any]]:
        """Yield the records of a file from an offset on: the offset of its header, its rows, and its bytes."""
        for at, content in _members(url, begin, self.storage, mapped=self.mapped):
            yield at, _at(url, self._batch, content), content

    def _batch(self, content: memoryview) -> Batch:
        import pyarrow as pa

        if self._known is not None:
            with (
                contextlib.suppress(pa.ArrowException, ValueError, StopIteration, OSError),
                pa.ipc.open_stream(content) as stream,
            ):
                if stream.schema.equals(self._known, check_metadata=True):
                    batch = stream.read_next_batch()
                    batch.validate(full=True)
                    return _without_nulls(batch)
        schema, batch = parse_record(content)
        if schema.to_json() != self.schema.to_json():
            raise JobError(_difference(self.schema, schema))
        types = {"key": pa.binary()} | {name: _type(column) for name, column in schema.columns.items()}
        if types != dict(zip(batch.schema.names, batch.schema.types, strict=True)):
            raise JobError("a record has other columns than its schema.")
        self._known = batch.schema
        return _without_nulls(batch)


def _without_nulls(batch: Batch) -> Batch:
    if any(array.null_count for array in batch.columns):
        raise JobError("values are missing in a record.")
    return batch


def _members(
    url: str, begin: int, storage: StorageOptions, *, mapped: bool = True
) -> Iterator[tuple[int, Any]]:
    """Yield the content of each record from an offset on, with the offset of its header.

    Records of local files are views of the file, so that only those bytes are read that are needed.
    """
    with open_read(url, storage) as source:
        whole = source.map() if mapped else None
        view = None if whole is None else memoryview(whole)
        at = 0
        for name, start, size, content in read_members(whole or source, _OWN, url=url, payload=view is None):
            if not name.endswith(_FIELD):
                raise JobError("this is not a part of tokens: it has other fields.", url=url)
            if at >= begin:
                yield at, content if view is None else view[start : start + size]
            at = start + padded(size)


def _at(url: str, function: Callable[[Any], T], content: Any) -> T:
    """Call a function; its errors name the file."""
    try:
        return function(content)
    except TarmacError as error:
        error.at(url=url)
        raise


def _type(column: Column) -> Any:
    import pyarrow as pa

    item = pa.from_numpy_dtype(np.dtype(column.dtype))
    if column.ragged:
        return pa.large_list(item)
    return pa.list_(item, column.shape[0] or 0) if column.shape else item


def _difference(one: Schema, other: Schema) -> str:
    names = [
        name
        for name in dict.fromkeys([*one.columns, *other.columns])
        if one.columns.get(name) != other.columns.get(name)
    ]
    facts = [
        f"{name} {one.info.get(name)!r} -> {other.info.get(name)!r}"
        for name in sorted({*one.info, *other.info})
        if one.info.get(name) != other.info.get(name) and name != "sources"
    ]
    changes = [f"the column {name}" for name in names] + facts
    return f"the part has other columns than those before it: {'; '.join(changes) or 'another tokenizer'}."


def taken(batch: Batch, rows: Array) -> Batch:
    """Return some rows of a batch."""
    import pyarrow as pa

    return batch.take(pa.array(rows))


def joined(batches: Sequence[Batch]) -> Batch:
    """Return several batches as one, whose arrays begin at their first row."""
    import pyarrow as pa

    arrays = [
        pa.concat_arrays([batch.column(number) for batch in batches])
        for number in range(batches[0].num_columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batches[0].schema)


def ragged(array: Any, dtype: str) -> Ragged:
    """Return the values of a list column, which may be a slice, and offsets from 0."""
    offsets = _bounds(array)
    values = numbers(array.values, dtype)[offsets[0] : offsets[-1]]
    return Ragged(values, offsets if not offsets[0] else offsets - offsets[0])


def numbers(array: Any, dtype: str) -> Array:
    """Return the numbers of an array, which may be a slice."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        result: Array = array.to_numpy(zero_copy_only=False)
        return result
    buffer = array.buffers()[1]
    if not len(array):
        return np.zeros(0, kind)
    return np.frombuffer(buffer, kind, len(array), array.offset * kind.itemsize)


def key_values(array: Any) -> Ragged:
    """Return the bytes of keys, and where each begins."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset).astype(np.int64)
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return Ragged(data, offsets - offsets[0])


def column_values(batch: Batch, schema: Schema, name: str) -> Array | Ragged:
    """Return a column as NumPy arrays."""
    column, array = schema.columns[name], batch.column(name)
    if column.ragged:
        return ragged(array, column.dtype)
    if column.shape:
        width = column.shape[0] or 0
        values = numbers(array.values, column.dtype)  # of all rows, also of a slice
        return (
            values.reshape(-1, width)[array.offset : array.offset + len(array)]
            if width
            else values.reshape(len(array), 0)
        )
    return numbers(array, column.dtype)


def to_records(batch: Batch, schema: Schema) -> Records:
    """Return a batch as a record."""
    columns = {name: column_values(batch, schema, name) for name in schema.columns}
    return Records(schema, Keys(batch.column("key")), columns)


def row_sizes(batch: Batch, schema: Schema) -> Array:
    """Return the number of bytes of each row, with its key."""
    sizes = key_values(batch.column("key")).lengths
    for name, column in schema.columns.items():
        width = np.dtype(column.dtype).itemsize
        if column.ragged:
            sizes = sizes + width * np.diff(_bounds(batch.column(name)))
        else:
            sizes = sizes + width * (column.shape[0] or 0 if column.shape else 1)
    return sizes


def total_size(batch: Batch, schema: Schema) -> int:
    """Return the sum of `row_sizes`, without looking at each row."""
    keys = batch.column("key")
    ends = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, 4 * keys.offset)
    total = int(ends[-1] - ends[0])
    for name, column in schema.columns.items():
        width = np.dtype(column.dtype).itemsize
        if column.ragged:
            bounds = _bounds(batch.column(name))
            total += width * int(bounds[-1] - bounds[0])
        else:
            total += width * len(batch) * (column.shape[0] or 0 if column.shape else 1)
    return total


def _bounds(array: Any) -> Array:
    """Return where the values of a list column begin and end, which may be a slice."""
    return np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, 8 * array.offset)


@dataclass
class Bin:
    """Divides rows into batches or shards of limited size."""

    schema: Schema
    max_rows: int
    max_bytes: int
    _rows: int = 0
    _bytes: int = 0

    def cut(self, batch: Batch) -> list[int]:
        """Return the rows of the next batch at which something begins, the first of all rows among them."""
        if not len(batch):
            return []
        total = total_size(batch, self.schema)
        if 0 < self._rows <= self.max_rows - len(batch) and self._bytes + total <= self.max_bytes:
            self._rows, self._bytes = self._rows + len(batch), self._bytes + total
            return []
        sums, edges, begin = np.cumsum(row_sizes(batch, self.schema)), [], 0
        while begin < len(batch):
            before = int(sums[begin - 1]) if begin else 0
            end = int(np.searchsorted(sums, before + self.max_bytes - self._bytes, "right"))
            end = min(max(end, begin), begin + self.max_rows - self._rows)
            if not self._rows:
                edges.append(begin)
                end = max(end, begin + 1)  # one row always fits
            if end > begin:
                self._rows += end - begin
                self._bytes += int(sums[end - 1]) - before
            if end < len(batch):
                self._rows = self._bytes = 0
            begin = end
        return edges


def rebatched(batches: Iterable[Batch], schema: Schema, max_rows: int, max_bytes: int) -> Iterator[Batch]:
    """Yield the same rows in batches as large as the limits allow."""
    held: list[Batch] = []
    room = Bin(schema, max_rows, max_bytes)
    for batch in batches:
        done = 0
        for edge in room.cut(batch):
            if edge > done:
                held.append(batch.slice(done, edge - done))
            if held:
                yield joined(held)
            held, done = [], edge
        if done < len(batch):
            held.append(batch.slice(done))
    if held:
        yield joined(held)
