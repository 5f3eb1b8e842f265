"""Read the rows of parts as Arrow batches, from any position, and cut them into batches of other sizes.

A batch has the column `key` and one for each output, as in a record. Rows stay in Arrow arrays: nothing here touches a
single row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tarmac.errors import JobMismatch, TarmacError
from tarmac.limits import Limits
from tarmac.storage import StorageOptions, open_read
from tarmac.storage.local import LocalSource
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar import TarOptions, read_members
from tarmac.tar.header import padded
from tarmac.tools.mappers.records import FIELD, Array, Keys, Ragged, Records, Schema, parse_record

Batch = Any
"""A `pyarrow.RecordBatch`; its module is imported when it is needed."""
Mask = Callable[[int, int], Array | None]
"""Which of the rows from a number on, of this many, are kept; None for all."""
_OWN = TarOptions(limits=Limits(member_bytes=1 << 62))
"""Parts hold what a job wrote, of any size."""
_SKIP = 1 << 20


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

    def batches(
        self, start: Position = Position(), stop: int | None = None, mask: Mask | None = None
    ) -> Iterator[Batch]:
        """Yield the rows from a position on, up to the row `stop` of all; those that the mask excludes are left out."""
        for at, batch in self.located(start, stop):
            kept = mask(at.row, len(batch)) if mask is not None else None
            yield batch if kept is None else taken(batch, np.flatnonzero(kept))

    def located(self, start: Position = Position(), stop: int | None = None) -> Iterator[tuple[Position, Batch]]:
        """Yield batches, each with the position of its first row."""
        row = start.row
        text = self.schema.to_json()
        for number in range(start.part, len(self.parts)):
            part = self.parts[number]
            first = start.file if number == start.part else 0
            for file in range(first, len(part.urls)):
                resumed = number == start.part and file == start.file
                offset, skip = (start.offset, start.skip) if resumed else (0, 0)
                for at, batch in _records(part.urls[file], offset, text, self.schema, self.storage):
                    if stop is not None and row >= stop:
                        return
                    last = len(batch) if stop is None else min(len(batch), skip + stop - row)
                    cut = batch if last - skip == len(batch) else batch.slice(skip, last - skip)
                    yield Position(number, file, at, skip, row), cut
                    row += len(cut)
                    skip = 0


def first_schema(parts: Sequence[Part], storage: StorageOptions = DEFAULT_STORAGE) -> Schema | None:
    """Return the schema of the first record; None if there is none."""
    for part in parts:
        for url in part.urls:
            for _, content in _members(url, 0, storage):
                return _parsed(content, url)[0]
    return None


def _records(
    url: str, offset: int, text: str, schema: Schema, storage: StorageOptions
) -> Iterator[tuple[int, Batch]]:
    """Yield the records of a file from an offset on, each with the offset of its header."""
    for at, content in _members(url, offset, storage):
        found, batch = _parsed(content, url)
        if found.to_json() != text:
            raise JobMismatch(_difference(schema, found), url=url, hint="combine the parts of one job.")
        _check_types(batch, schema, url)
        yield at, batch


def _members(url: str, offset: int, storage: StorageOptions) -> Iterator[tuple[int, bytes]]:
    """Yield the content of each record, with the offset of its header."""
    with open_read(url, storage) as source:
        if offset and isinstance(source, LocalSource):
            os.lseek(source.fileno(), offset, os.SEEK_SET)
        elif offset:
            rest = offset
            while rest and (data := source.read(min(rest, _SKIP))):
                rest -= len(data)
        at = offset
        for name, start, size, content in read_members(source, _OWN, url=url):
            if not name.endswith(f".{FIELD}".encode()):
                raise JobMismatch("this is not a part of tokens: it has other fields.", url=url)
            yield at, content
            at = offset + start + padded(size)


def _parsed(content: bytes, url: str) -> tuple[Schema, Batch]:
    try:
        return parse_record(content)
    except TarmacError as error:
        error.at(url=url)
        raise


def _check_types(batch: Batch, schema: Schema, url: str) -> None:
    import pyarrow as pa

    types = {"key": pa.binary()}
    for name, column in schema.columns.items():
        item = pa.from_numpy_dtype(np.dtype(column.dtype))
        types[name] = pa.large_list(item) if column.ragged else pa.list_(item, column.shape[0] or 0) if column.shape else item
    actual = dict(zip(batch.schema.names, batch.schema.types, strict=True))
    nulls = any(array.null_count for array in batch.columns)
    if actual != types or nulls:
        raise JobMismatch("a record has other columns than its schema.", url=url)


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
    offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, 8 * array.offset)
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
        return values.reshape(-1, width)[array.offset : array.offset + len(array)] if width else values.reshape(len(array), 0)
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
            offsets = batch.column(name)
            bounds = np.frombuffer(offsets.buffers()[1], np.int64, len(batch) + 1, 8 * offsets.offset)
            sizes = sizes + width * np.diff(bounds)
        else:
            sizes = sizes + width * (column.shape[0] or 0 if column.shape else 1)
    return sizes


@dataclass
class Bin:
    """Counts what was put into a batch or a shard of limited size."""

    max_rows: int
    max_bytes: int
    rows: int = 0
    bytes: int = 0

    def fill(self, sums: Array, begin: int) -> int:
        """Put in rows from `begin` on, whose sizes have these running sums, until it is full; return the next row."""
        before = int(sums[begin - 1]) if begin else 0
        end = int(np.searchsorted(sums, before + self.max_bytes - self.bytes, "right"))
        end = min(max(end, begin), begin + self.max_rows - self.rows)
        if end == begin and not self.rows:
            end = begin + 1  # one row always fits
        if end > begin:
            self.rows += end - begin
            self.bytes += int(sums[end - 1]) - before
        return end

    def empty(self) -> None:
        """Begin the next one."""
        self.rows = self.bytes = 0


def rebatched(batches: Iterable[Batch], schema: Schema, max_rows: int, max_bytes: int) -> Iterator[Batch]:
    """Yield the same rows in batches as large as the limits allow."""
    held: list[Batch] = []
    room = Bin(max_rows, max_bytes)
    for batch in batches:
        sums, begin = np.cumsum(row_sizes(batch, schema)), 0
        while begin < len(batch):
            end = room.fill(sums, begin)
            if end > begin:
                held.append(batch.slice(begin, end - begin))
            begin = end
            if begin < len(batch):
                yield joined(held)
                held = []
                room.empty()
    if held:
        yield joined(held)
