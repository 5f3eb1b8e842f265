"""Pack the tokens of rows into sequences of one length: rows become pieces of sequences, with the length of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tarmac.exact.packing import Packing, pack_lengths
from tarmac.limits import MIB
from tarmac.storage import StorageOptions
from tarmac.tokens.drafts import write_draft
from tarmac.tokens.info import SEGMENTS, TOKENS, packed_columns
from tarmac.tokens.rows import Batch, Parts, Rows, column_values, rebatched, taken
from tarmac.tools.mappers.contract import Column
from tarmac.tools.mappers.records import Array, Keys, Ragged, Records, Schema, parse_record, to_arrow

WINDOW_BYTES = 16 * MIB
"""Bytes of rows that are packed together."""


@dataclass(frozen=True)
class PackSettings:
    """How rows are packed."""

    size: int
    across_documents: bool = False

    def schema(self, schema: Schema) -> Schema:
        """Return the schema of packed rows; raise if these cannot be packed."""
        columns = packed_columns(schema.columns)
        return Schema(columns | {SEGMENTS: Column("uint32", (None,))}, {**schema.info, "packed": self.size})


def pack_rows(
    rows: Iterable[Rows], schema: Schema, settings: PackSettings, directory: str, storage: StorageOptions
) -> Parts:
    """Write sequences to a working file; the key of a sequence is that of its first row."""
    packed = settings.schema(schema)
    windows = rebatched((batch for batch, _ in rows), schema, 1 << 62, WINDOW_BYTES)
    part = write_draft(
        _packed(windows, schema, packed, settings), packed, os.path.join(directory, "packed.tar")
    )
    return Parts([part], packed, storage)


def _packed(
    windows: Iterable[Batch], schema: Schema, packed: Schema, settings: PackSettings
) -> Iterator[Batch]:
    for batch in windows:
        tokens = column_values(batch, schema, TOKENS)
        assert isinstance(tokens, Ragged)
        packing = pack_lengths(tokens.lengths, settings.size, across_documents=settings.across_documents)
        if not len(packing):
            continue
        order = _order(packing, tokens.offsets)
        ends = np.concatenate([[0], np.cumsum(packing.lengths)])[packing.bounds]
        columns: dict[str, Any] = {
            name: Ragged(_values(column_values(batch, schema, name))[order], ends)
            for name in packed.columns
            if name != SEGMENTS
        }
        columns[SEGMENTS] = Ragged(packing.lengths.astype(np.uint32), packing.bounds)
        firsts = taken(batch, packing.documents[packing.bounds[:-1]]).column("key")
        yield parse_record(to_arrow(Records(packed, Keys(firsts), columns)))[1]


def _order(packing: Packing, offsets: Array) -> Array:
    """Return where each token of the sequences is among the tokens of the rows."""
    begins = offsets[packing.documents] + packing.starts
    before = np.cumsum(packing.lengths) - packing.lengths
    order: Array = np.repeat(begins - before, packing.lengths)
    order += np.arange(len(order))
    return order


def _values(column: Array | Ragged) -> Array:
    assert isinstance(column, Ragged)
    return column.values
