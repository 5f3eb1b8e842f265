"""Keep rows in working files while they are sorted or packed: shards of records, which are read like parts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from tarmac.limits import MIB
from tarmac.samples.writer import TarWriter
from tarmac.storage.types import WriteOptions
from tarmac.tokens.rows import Batch, Part, Parts, rebatched, to_records
from tarmac.tools.mappers.records import FIELD, Schema, to_arrow

_ROWS, _BYTES = 1 << 12, MIB // 4
"""Limits of the records: one of each file is in memory while several are merged."""
_DRAFT = WriteOptions(overwrite=True, durable=False)


class _Writer(TarWriter):
    """A writer that publishes nothing unless it is closed."""

    _watched = False


def write_draft(batches: Iterable[Batch], schema: Schema, path: str) -> Part:
    """Write rows to a working file."""
    rows = 0
    with _Writer(path, encoder=False, write=_DRAFT) as writer:
        for number, batch in enumerate(rebatched(batches, schema, _ROWS, _BYTES)):
            rows += len(batch)
            writer.write({"__key__": f"{number:09d}", FIELD: to_arrow(to_records(batch, schema))})
    return Part(os.path.basename(path), (path,), rows)


def batches_of(parts: Parts) -> Iterator[Batch]:
    """Return the rows of parts."""
    return (batch for batch, _ in parts.rows())
