"""What a format of `combine` is: it writes batches of rows to files, and counts the rows of such files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tarmac.errors import UsageError
from tarmac.jobs.task import Outcome
from tarmac.storage import Sink, StorageOptions, WriteOptions, open_write, stat, write_all
from tarmac.storage.types import DEFAULT_STORAGE, DEFAULT_WRITE
from tarmac.tokens.info import SEGMENTS, TokenInfo, token_columns
from tarmac.tokens.rows import Batch, Rows, rebatched
from tarmac.tokens.survey import Piece, Pieces, Summary
from tarmac.tools.mappers.contract import Column
from tarmac.tools.mappers.records import Array, Ragged, Schema

INFO = "info.json"
"""The file that describes columns where the format has no other description."""
_REPLACE = WriteOptions(overwrite=True)


@dataclass(frozen=True)
class Target:
    """Where rows are written, and what is known about them in advance."""

    directory: str
    """Ends in a slash."""
    schema: Schema
    summary: Summary
    record_rows: int
    record_bytes: int
    block_size: int | None = None
    overwrite: bool = False
    storage: StorageOptions = DEFAULT_STORAGE

    @property
    def info(self) -> TokenInfo:
        """The metadata of the tokens."""
        return TokenInfo.of(self.schema)

    @property
    def write(self) -> WriteOptions:
        """How files are published: one that another program writes meanwhile is not replaced."""
        return _REPLACE if self.overwrite else DEFAULT_WRITE

    def open(self, name: str) -> Sink:
        """Begin a file."""
        return open_write(self.directory + name, self.storage, self.write)

    def width(self, name: str) -> int | None:
        """Return the length that the rows of a ragged column are filled up to; None if there is none.

        A column whose rows are all longer, and equally long, keeps its length, as images beside texts do.
        """
        longest = self.summary.longest.get(name, 0)
        block = longest if name == SEGMENTS else self.block_size or self.info.packed or self.info.block_size
        if block is None:
            return None
        if longest > block and self.block_size is not None and self.summary.shortest[name] != longest:
            what = f'a row of "{name}" has {longest} tokens, more than {block}.'
            raise UsageError(what, field="block_size", hint=f"`block_size` {longest}.")
        return max(longest, block)

    def batches(self, rows: Iterator[Rows]) -> Iterator[Batch]:
        """Return rows in batches of the size of records."""
        return rebatched((batch for batch, _ in rows), self.schema, self.record_rows, self.record_bytes)

    def size(self, name: str) -> int:
        """Return the size of a file."""
        return stat(self.directory + name, self.storage).size


class Format(Protocol):
    """Writes rows in one way."""

    pieces: Pieces

    def names(self, target: Target, pieces: Sequence[Piece]) -> list[str]:
        """Return the names of the units: the file of each piece, or what stands for several files."""

    def others(self, target: Target) -> list[str]:
        """Return the names of all other files."""

    def check(self, target: Target) -> None:
        """Raise if these rows cannot be written in this way."""

    def write(self, target: Target, name: str, rows: Iterator[Rows], outcome: Outcome) -> None:
        """Write a piece, and add its files to the outcome."""

    def finish(self, target: Target, outcomes: Sequence[Outcome]) -> None:
        """Write what needs all pieces."""

    def count(self, target: Target, names: Sequence[str]) -> int:
        """Return the number of rows, as the files themselves tell it."""


class Files:
    """Several files that are published together, the last of them last."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._sinks: dict[str, Sink] = {}

    def open(self, name: str, head: bytes = b"") -> Sink:
        """Begin a file."""
        sink = self._sinks[name] = self._target.open(name)
        sink.write(head)
        return sink

    def publish(self, outcome: Outcome) -> None:
        """Publish all files."""
        while self._sinks:
            name = next(iter(self._sinks))
            self._sinks[name].commit()
            del self._sinks[name]
            outcome.outputs[self._target.directory + name] = self._target.size(name)

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for sink in self._sinks.values():
            sink.abort()


def put(sink: Sink, array: Array) -> None:
    """Write the elements of an array."""
    sink.write(np.ascontiguousarray(array).tobytes())


def filled(values: Ragged, width: int, fill: int) -> tuple[Array, Array]:
    """Return rows of equal length, and where they have values."""
    mask = np.arange(width) < values.lengths[:, None]
    rows = np.full(mask.shape, fill, values.values.dtype)
    rows[mask] = values.values
    return rows, mask


def npy_head(dtype: Any, shape: tuple[int, ...]) -> bytes:
    """Return the beginning of an .npy file."""
    stream = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def describe(target: Target, layout: Mapping[str, Any]) -> None:
    """Write `info.json`: the number of rows, the columns, and the metadata of the tokens."""
    columns = {name: column.to_json() for name, column in target.schema.columns.items()}
    content = {"rows": target.summary.rows, "columns": columns, "info": dict(target.schema.info), **layout}
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    write_all(target.directory + INFO, text.encode(), target.storage, _REPLACE)


def fill_token(column: Column, name: str, target: Target) -> int:
    """Return what rows of a column are filled up with: the padding token, if the column has tokens."""
    return target.info.pad_token if name in token_columns(target.schema) else 0
