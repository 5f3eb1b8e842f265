"""A directory that `tensordict.TensorDict.load_memmap` opens, written without torch.

Each column is a raw little-endian file `COLUMN.memmap`, and `meta.json` has the shape and the type of each. Rows are
filled up to the same length; `COLUMN_mask` tells where they have values. `key` has the bytes of keys, filled up
with zeros.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tarmac.errors import UsageError
from tarmac.jobs.task import Outcome
from tarmac.storage import read_all
from tarmac.tokens.formats.base import INFO, Files, Target, describe, fill_token, filled, put
from tarmac.tokens.rows import Batch, Rows, column_values, key_values
from tarmac.tokens.survey import Piece, Pieces
from tarmac.tools.mappers.records import Array, Ragged

META = "meta.json"
_RESERVED = ("shape", "device", "key")
_CLASS = {
    "device": "cpu",
    "_type": "<class 'tensordict._td.TensorDict'>",
    "_format_version": 1,
    "_class": "tensordict:TensorDict",
}


class TensorDictFormat:
    """Writes COLUMN.memmap, COLUMN_mask.memmap, key.memmap and meta.json."""

    pieces: Pieces = "whole"

    def names(self, target: Target, pieces: Sequence[Piece]) -> list[str]:
        del target, pieces
        return [META]

    def others(self, target: Target) -> list[str]:
        return [*(f"{name}.memmap" for name in self._arrays(target)), INFO]

    def check(self, target: Target) -> None:
        for name in self._arrays(target).keys() - {"key"}:
            if name in _RESERVED or name.startswith("_"):
                raise UsageError(f'a tensordict cannot have a column "{name}".', field="format")

    def _arrays(self, target: Target) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the type and the shape of each array."""
        arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
        rows = target.summary.rows
        for name, column in target.schema.columns.items():
            if column.ragged:
                arrays[name] = column.dtype, (rows, self._width(target, name))
                arrays[f"{name}_mask"] = "bool", (rows, self._width(target, name))
            else:
                arrays[name] = column.dtype, (rows, *(size or 0 for size in column.shape))
        arrays["key"] = "uint8", (rows, max(target.summary.longest_key, 1))
        return arrays

    def _width(self, target: Target, name: str) -> int:
        width = target.width(name)
        return max(target.summary.longest.get(name, 0), 1) if width is None else width

    def write(self, target: Target, name: str, rows: Iterator[Rows], outcome: Outcome) -> None:
        arrays = self._arrays(target)
        with Files(target) as files:
            sinks = {each: files.open(f"{each}.memmap") for each in arrays}
            for batch in target.batches(rows):
                for each, values in self._values(target, batch).items():
                    put(sinks[each], values)
            meta: dict[str, Any] = {
                each: {"device": "cpu", "shape": shape, "dtype": f"torch.{kind}", "is_nested": False}
                for each, (kind, shape) in arrays.items()
            }
            meta |= {"shape": [target.summary.rows]} | _CLASS
            files.open(name, json.dumps(meta).encode())
            files.publish(outcome)

    def _values(self, target: Target, batch: Batch) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for name, column in target.schema.columns.items():
            values = column_values(batch, target.schema, name)
            if isinstance(values, Ragged):
                fill = fill_token(column, name, target)
                arrays[name], arrays[f"{name}_mask"] = filled(values, self._width(target, name), fill)
            else:
                arrays[name] = values
        keys = key_values(batch.column("key"))
        return arrays | {"key": filled(keys, max(target.summary.longest_key, 1), 0)[0]}

    def finish(self, target: Target, outcomes: Sequence[Outcome]) -> None:
        del outcomes
        describe(target, {})

    def count(self, target: Target, names: Sequence[str]) -> int:
        """Compare `meta.json` with the sizes of all files."""
        del names
        meta = json.loads(read_all(target.directory + META, target.storage))
        for name, (kind, _) in self._arrays(target).items():
            shape = meta[name]["shape"]
            size = np.dtype(kind).itemsize * int(np.prod(shape))
            if shape[0] != meta["shape"][0] or target.size(f"{name}.memmap") != size:
                return -1
        return int(meta["shape"][0])


FORMAT = TensorDictFormat()
