"""Show the rows of records, such as combined tokens, when their manifest is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tarmac.exact.dataset import Dataset
from tarmac.exact.selection import whole
from tarmac.exact.shardset import ShardSet
from tarmac.indexing.manifest import Manifest
from tarmac.tools.mappers.contract import Column
from tarmac.tools.mappers.shards import lists_records, record_schema
from tarmac.tools.options import Access, bundle
from tarmac.tools.plan import IndexedSamples
from tarmac.tools.select import Select
from tarmac.tools.show.verb import SampleView, pick

MAX_NUMBERS = 100
"""Numbers of a column that are shown."""


@dataclass(frozen=True, slots=True)
class RowView(SampleView):
    """One row: its fields are the bytes of its columns."""

    columns: Mapping[str, Column]

    def describe(self) -> dict[str, str]:
        return {name: _numbers(data, self.columns[name]) for name, data in self.fields.items()}


def find_rows(
    manifest: Manifest, access: Access, at: Sequence[int | str], options: Mapping[str, Any]
) -> Iterator[RowView] | None:
    """Return the selected rows, or None if the manifest lists shards of samples."""
    rows = open_rows(manifest, bundle(Select, options), access)
    if rows is None:
        return None
    columns = record_schema(manifest).columns
    return (
        RowView(row["__key__"], row["__url__"], {name: row[name] for name in columns if name in row}, columns)
        for row in (pick(rows, at) if at else rows.samples(rows.everything))
    )


def open_rows(manifest: Manifest | None, select: Select, access: Access) -> IndexedSamples | None:
    """Open records by the index of their rows, and select rows; None if no manifest lists records."""
    if manifest is None or not lists_records(manifest):
        return None
    rows = Dataset._of_parts([whole(ShardSet(manifest, access.opening(rows=True)))])
    return IndexedSamples(select.of_dataset(rows), select)


def _numbers(data: bytes, column: Column) -> str:
    values = np.frombuffer(data, column.dtype)
    shown = " ".join(map(str, values[:MAX_NUMBERS].tolist()))
    return f"{len(values)} x {column.dtype}: {shown}{' …' if len(values) > MAX_NUMBERS else ''}"
