"""Store rows of columns as Arrow records: what a batch of samples became.

A record is an Arrow stream of one batch: the column `key`, and one for each output. Its metadata describes the outputs,
so that a file of records needs no other description. Shards of records are plain tar files with one member per record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tarmac.errors import DecodeFailed, TransformFailed, UsageError
from tarmac.tools.mappers.contract import Column

FIELD = "arrow"
"""The field of a sample that holds a record."""
FORMAT = "tarmac-records-1"
_METADATA = b"tarmac"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Schema:
    """The columns of records, and what readers need to know about them."""

    columns: Mapping[str, Column]
    info: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the schema as text; equal schemas are equal texts."""
        columns = {name: column.to_json() for name, column in self.columns.items()}
        return json.dumps({"format": FORMAT, "columns": columns, "info": self.info}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Schema:
        """Return the schema that `to_json` described."""
        values = json.loads(text)
        if values["format"] != FORMAT:
            raise ValueError(f"unknown format {values['format']!r}")
        columns = {name: Column.from_json(column) for name, column in values["columns"].items()}
        return cls(columns, values["info"])


@dataclass(frozen=True)
class Ragged:
    """Values of different lengths: value i is `values[offsets[i]:offsets[i + 1]]`."""

    values: Array
    offsets: Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Array:
        return self.values[self.offsets[number] : self.offsets[number + 1]]

    @property
    def lengths(self) -> Array:
        return np.diff(self.offsets)


class Keys(Sequence[str]):
    """Keys that stay in an Arrow array of bytes until they are needed as text."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [key.decode("utf-8", "surrogateescape") for key in self.array[number].to_pylist()]
        return self.array[number].as_py().decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Records:
    """Rows: their keys, and for each column an array or `Ragged`."""

    schema: Schema
    keys: Sequence[str]
    columns: Mapping[str, Array | Ragged]

    def __len__(self) -> int:
        return len(self.keys)


def pack(values: Sequence[Any] | Array | Ragged, column: Column, name: str, rows: int) -> Array | Ragged:
    """Return the values of a column as one array; raise unless they are what the schema says."""
    if len(values) != rows:  # not the fault of a sample
        raise UsageError(f'the mapper returned {len(values)} values of "{name}" for {rows} samples.')
    if isinstance(values, Ragged):
        return Ragged(_cast(values.values, column, name), values.offsets)
    if column.ragged:
        arrays = [np.asarray(value) for value in values]
        if any(array.ndim != 1 for array in arrays):
            raise TransformFailed(f'the column "{name}" has a value that is not a list of numbers.')
        offsets = np.zeros(rows + 1, np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        kept = [array for array in arrays if len(array)]  # an empty list is an array of floats
        joined = np.concatenate(kept) if kept else np.zeros(0, column.dtype)
        return Ragged(_cast(joined, column, name), offsets)
    array = np.asarray(values)
    if array.shape != (rows, *column.shape):
        raise TransformFailed(
            f'the column "{name}" has the shape {array.shape}, expected {(rows, *column.shape)}.'
        )
    return _cast(array, column, name)


def _cast(array: Array, column: Column, name: str) -> Array:
    """Convert to the type of a column; a number that it cannot hold is an error."""
    kind = np.dtype(column.dtype)
    if array.dtype == kind:
        return np.ascontiguousarray(array)
    if kind.kind in "iu" and array.size:
        limits = np.iinfo(kind)
        low, high = array.min(), array.max()
        if array.dtype.kind not in "iub" or low < limits.min or high > limits.max:
            raise TransformFailed(f'the column "{name}" has values from {low} to {high}, expected {kind}.')
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(array, kind)
    if kind.kind == "f" and array.dtype.kind in "iuf" and (np.isinf(result) & np.isfinite(array)).any():
        largest = np.abs(array[np.isfinite(array)]).max()
        raise TransformFailed(f'the column "{name}" has a value of {largest:.6g}, expected {kind}.')
    return result


def to_arrow(records: Records) -> bytes:
    """Return a record."""
    import pyarrow as pa

    given = records.keys
    keys = given.array if isinstance(given, Keys) else _keys(given)
    arrays = [keys, *(_arrow(values) for values in records.columns.values())]
    metadata = {_METADATA: records.schema.to_json()}
    names = ["key", *records.columns]
    schema = pa.schema(
        [pa.field(name, array.type, nullable=False) for name, array in zip(names, arrays, strict=True)],
        metadata,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _keys(keys: Sequence[str]) -> Any:
    import pyarrow as pa

    try:
        return pa.array(keys, pa.string()).view(pa.binary())
    except UnicodeEncodeError:
        return pa.array([key.encode("utf-8", "surrogateescape") for key in keys], pa.binary())


def _arrow(values: Array | Ragged) -> Any:
    import pyarrow as pa

    if isinstance(values, Ragged):
        return pa.LargeListArray.from_arrays(pa.array(values.offsets, pa.int64()), pa.array(values.values))
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def parse_record(content: Any) -> tuple[Schema, Any]:
    """Return the schema and the Arrow batch of a record; raise DecodeFailed if it is damaged."""
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(pa.py_buffer(content)) as stream:
            schema = Schema.from_json((stream.schema.metadata or {})[_METADATA])
            batch = stream.read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, LookupError, ValueError, TypeError, OSError, StopIteration) as error:
        raise DecodeFailed(f"this is not a record ({str(error)[:200]}).") from None
    return schema, batch


def from_arrow(content: bytes | memoryview) -> Records:
    """Read a record; raise DecodeFailed if it is damaged."""
    schema, batch = parse_record(content)
    try:
        keys = [key.decode("utf-8", "surrogateescape") for key in batch.column("key").to_pylist()]
        columns = {name: _numpy(batch.column(name), column) for name, column in schema.columns.items()}
    except (LookupError, ValueError, TypeError) as error:
        raise DecodeFailed(f"this is not a record ({str(error)[:200]}).") from None
    return Records(schema, keys, columns)


def _numpy(array: Any, column: Column) -> Array | Ragged:
    kind = np.dtype(column.dtype)
    if column.ragged:
        return Ragged(
            _values(array.values, kind), np.frombuffer(array.buffers()[1], np.int64, len(array) + 1)
        )
    if column.shape:
        return _values(array.values, kind).reshape(len(array), *column.shape)
    return _values(array, kind)


def _values(array: Any, kind: np.dtype[Any]) -> Array:
    if str(array.type) not in (
        str(kind),
        {"float16": "halffloat", "float32": "float", "float64": "double"}.get(str(kind)),
    ):
        raise ValueError(f"expected {kind}, got {array.type}")
    if array.null_count:
        raise ValueError("values are missing")
    if kind.kind == "b":
        return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    return np.frombuffer(array.buffers()[1] or b"", kind, len(array), array.offset * kind.itemsize)


def iter_rows(records: Records) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the key and the values of each row."""
    for number, key in enumerate(records.keys):
        yield key, {name: values[number] for name, values in records.columns.items()}
