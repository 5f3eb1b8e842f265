"""Files of Megatron-LM: COLUMN.bin has the tokens of all documents, COLUMN.idx their lengths and offsets."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from tarmac.errors import UsageError
from tarmac.jobs.task import Outcome
from tarmac.storage import Sink, read_range
from tarmac.storage.types import ReadableSink
from tarmac.tokens.formats.base import INFO, Files, Target, describe, put
from tarmac.tokens.info import token_columns
from tarmac.tokens.rows import Rows, column_values
from tarmac.tokens.survey import Piece, Pieces
from tarmac.tools.mappers.records import Ragged

_HEAD = struct.Struct("<9sQBQQ")
"""Magic number, version, type of tokens, number of sequences, and of boundaries of documents."""
_MAGIC, _VERSION = b"MMIDIDX\x00\x00", 1
_CODES = {"uint16": (np.uint16, 8), "uint32": (np.int32, 4)}
"""The types of tokens that Megatron has, and their numbers; it has no unsigned 32 bits."""
_ROWS = 1 << 16


class MegatronFormat:
    """Writes a pair of files for each column of tokens. Each row is a document."""

    pieces: Pieces = "whole"

    def names(self, target: Target, pieces: Sequence[Piece]) -> list[str]:
        del pieces
        return [f"{self._columns(target)[-1]}.idx"]

    def others(self, target: Target) -> list[str]:
        *first, last = self._columns(target)
        return [f"{last}.bin", *(f"{name}.{end}" for name in first for end in ("bin", "idx")), INFO]

    def _columns(self, target: Target) -> list[str]:
        columns = target.schema.columns
        return [name for name in token_columns(target.schema) if columns[name].ragged] or [""]

    def check(self, target: Target) -> None:
        largest = max(target.info.vocab_size, target.info.image_vocab_size)
        for name in self._columns(target):
            dtype = target.schema.columns[name].dtype if name else "nothing"
            if dtype not in _CODES or largest > 1 << 31:
                what = f"Megatron has tokens of uint16 and int32, these are {dtype} up to {largest - 1}."
                raise UsageError(what, field="format")

    def write(self, target: Target, name: str, rows: Iterator[Rows], outcome: Outcome) -> None:
        columns, count = self._columns(target), target.summary.rows
        with Files(target) as files:
            tokens = {each: files.open(f"{each}.bin") for each in columns}
            indexes = {each: files.open(f"{each}.idx", self._head(target, each)) for each in columns}
            for batch in target.batches(rows):
                for each in columns:
                    values = column_values(batch, target.schema, each)
                    assert isinstance(values, Ragged)
                    put(tokens[each], values.values)  # below 2^31, so signed or not
                    put(indexes[each], values.lengths.astype(np.int32))
            for each in columns:
                _complete(indexes[each], count, np.dtype(target.schema.columns[each].dtype).itemsize)
            files.publish(outcome)

    def _head(self, target: Target, name: str) -> bytes:
        code = _CODES[target.schema.columns[name].dtype][1]
        return _HEAD.pack(_MAGIC, _VERSION, code, target.summary.rows, target.summary.rows + 1)

    def finish(self, target: Target, outcomes: Sequence[Outcome]) -> None:
        del outcomes
        describe(target, {})

    def count(self, target: Target, names: Sequence[str]) -> int:
        """Compare the heads of indexes with the sizes of all files."""
        del names
        counts = set()
        for name in self._columns(target):
            head = _HEAD.unpack(read_range(f"{target.directory}{name}.idx", 0, _HEAD.size, target.storage))
            width = np.dtype(target.schema.columns[name].dtype).itemsize
            expected = width * target.summary.values.get(name, 0)
            if (
                target.size(f"{name}.idx") != _HEAD.size + 20 * head[3] + 8
                or target.size(f"{name}.bin") != expected
            ):
                return -1
            counts.add(head[3])
        return int(counts.pop()) if len(counts) == 1 else -1


def _complete(index: Sink, rows: int, width: int) -> None:
    """Append the offset of each sequence, from the lengths before, and the boundaries of documents."""
    assert isinstance(index, ReadableSink)
    begin = 0
    for row in range(0, rows, _ROWS):
        data = index.read_back(_HEAD.size + 4 * row, 4 * min(_ROWS, rows - row))
        ends = begin + width * np.cumsum(np.frombuffer(data, np.int32), dtype=np.int64)
        put(index, np.concatenate([[begin], ends[:-1]]).astype(np.int64))
        begin = int(ends[-1])
    for row in range(0, rows + 1, _ROWS):
        put(index, np.arange(row, min(row + _ROWS, rows + 1), dtype=np.int64))


FORMAT = MegatronFormat()
