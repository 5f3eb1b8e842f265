"""Arrays in .npy files, which `numpy.load(mmap_mode="r")` opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tarmac.errors import UsageError
from tarmac.jobs.task import Outcome
from tarmac.storage import read_range
from tarmac.tokens.formats.base import INFO, Files, Target, describe, fill_token, filled, npy_head, put
from tarmac.tokens.rows import Batch, Rows, column_values, key_values
from tarmac.tokens.survey import Piece, Pieces
from tarmac.tools.mappers.records import Array, Ragged

KEYS, OFFSETS, MASK = "keys", "offsets", "mask"
WIDEST_KEY = 255
"""Longer keys are stored as bytes and offsets, so that one long key does not make all of them long."""


class NpyFormat:
    """Writes COLUMN.npy, with COLUMN.mask.npy if rows have equal lengths, or else COLUMN.offsets.npy."""

    pieces: Pieces = "whole"

    def names(self, target: Target, pieces: Sequence[Piece]) -> list[str]:
        del target, pieces
        return [f"{KEYS}.npy"]

    def others(self, target: Target) -> list[str]:
        return [*(name for name in self._heads(target) if name != f"{KEYS}.npy"), INFO]

    def check(self, target: Target) -> None:
        for name in target.schema.columns:
            if name == KEYS or name.endswith((f".{MASK}", f".{OFFSETS}")):
                raise UsageError(f'npy files cannot have a column "{name}".', field="format")
        self._heads(target)

    def _heads(self, target: Target) -> dict[str, bytes]:
        """Return all files, with what they begin with."""
        summary, heads = target.summary, dict[str, bytes]()
        rows = summary.rows
        for name, column in target.schema.columns.items():
            if not column.ragged:
                heads[f"{name}.npy"] = npy_head(column.dtype, (rows, *(size or 0 for size in column.shape)))
            elif (width := target.width(name)) is not None:
                heads[f"{name}.npy"] = npy_head(column.dtype, (rows, width))
                heads[f"{name}.{MASK}.npy"] = npy_head(bool, (rows, width))
            else:
                heads[f"{name}.npy"] = npy_head(column.dtype, (summary.values.get(name, 0),))
                heads[f"{name}.{OFFSETS}.npy"] = npy_head(np.int64, (rows + 1,))
        if summary.longest_key <= WIDEST_KEY:
            heads[f"{KEYS}.npy"] = npy_head(f"S{max(summary.longest_key, 1)}", (rows,))
        else:
            heads[f"{KEYS}.{OFFSETS}.npy"] = npy_head(np.int64, (rows + 1,))
            heads[f"{KEYS}.npy"] = npy_head(np.uint8, (summary.key_bytes,))
        return heads

    def write(self, target: Target, name: str, rows: Iterator[Rows], outcome: Outcome) -> None:
        with Files(target) as files:
            sinks = {each: files.open(each, head) for each, head in self._heads(target).items()}
            ends: dict[str, int] = {}
            for each, sink in sinks.items():
                if each.endswith(f".{OFFSETS}.npy"):
                    put(sink, np.zeros(1, np.int64))
            for batch in target.batches(rows):
                for each, array in self._arrays(target, batch, ends).items():
                    put(sinks[each], array)
            files.publish(outcome)

    def _arrays(self, target: Target, batch: Batch, ends: dict[str, int]) -> dict[str, Array]:
        """Return what a batch adds to each file; `ends` are the ends of the values so far."""
        arrays: dict[str, Array] = {}
        for name, column in target.schema.columns.items():
            values = column_values(batch, target.schema, name)
            width = target.width(name) if column.ragged else None
            if not isinstance(values, Ragged):
                arrays[f"{name}.npy"] = values
            elif width is None:
                arrays |= _ragged(name, values, ends)
            else:
                rows, mask = filled(values, width, fill_token(column, name, target))
                arrays |= {f"{name}.npy": rows, f"{name}.{MASK}.npy": mask}
        keys = key_values(batch.column("key"))
        if target.summary.longest_key > WIDEST_KEY:
            return arrays | _ragged(KEYS, keys, ends)
        return arrays | {f"{KEYS}.npy": filled(keys, max(target.summary.longest_key, 1), 0)[0]}

    def finish(self, target: Target, outcomes: Sequence[Outcome]) -> None:
        del outcomes
        describe(target, {"files": sorted(self._heads(target))})

    def count(self, target: Target, names: Sequence[str]) -> int:
        """Compare the headers and sizes of all files; return the number of rows that they have in common."""
        del names
        counts = set()
        for name, head in self._heads(target).items():
            url = target.directory + name
            shape, kind, start = _header(read_range(url, 0, len(head), target.storage))
            if target.size(name) != start + kind.itemsize * int(np.prod(shape)):
                return -1
            if name.endswith(f".{OFFSETS}.npy"):
                counts.add(shape[0] - 1)
            elif len(shape) > 1 or f"{name[:-4]}.{OFFSETS}.npy" not in self._heads(target):
                counts.add(shape[0])
        return counts.pop() if len(counts) == 1 else -1


def _ragged(name: str, values: Ragged, ends: dict[str, int]) -> dict[str, Array]:
    begin = ends.get(name, 0)
    ends[name] = begin + int(values.offsets[-1])
    return {f"{name}.npy": values.values, f"{name}.{OFFSETS}.npy": begin + values.offsets[1:]}


def _header(head: bytes) -> tuple[tuple[int, ...], np.dtype, int]:
    import io

    stream = io.BytesIO(head)
    np.lib.format.read_magic(stream)
    shape, _, kind = np.lib.format.read_array_header_1_0(stream)
    return shape, kind, stream.tell()


FORMAT = NpyFormat()
