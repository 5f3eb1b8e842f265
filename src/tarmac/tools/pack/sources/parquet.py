"""Parquet: read in batches, only the columns that are wanted."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tarmac.errors import DecodeFailed, ObjectChanged
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.pack.sources.columns import Columns, Layout
from tarmac.tools.pack.sources.files import loading
from tarmac.tools.pack.sources.near import Near
from tarmac.tools.pack.sources.source import File, Item, Load, Seen, Skipped, Source, Where

__all__ = ["Parquet"]

AT_ONCE = 1024
"""Rows of a batch."""


@dataclass
class Parquet(Source):
    """A null makes no field."""

    name: str
    near: Near
    columns: Columns = field(default_factory=Columns)
    storage: StorageOptions = DEFAULT_STORAGE
    kind = "parquet"

    @cached_property
    def layout(self) -> Layout:
        """What each column becomes."""
        with self._file() as file:
            return self.columns.layout(file.schema_arrow.names, self.name)

    @contextlib.contextmanager
    def _file(self) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with self.near.opened(self.name), pq.ParquetFile(self.near.path) as file:
                yield file
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DecodeFailed(f"this cannot be read as parquet: {error}.", url=self.name) from None

    def items(self, skipped: Skipped) -> Iterator[Item]:
        layout = self.layout
        sized = self.columns.sized
        wanted = layout.wanted if sized else [*filter(None, [self.columns.key]), *layout.files]
        with self._file() as file:
            for number in range(0 if wanted else file.metadata.num_rows):
                yield None, 0, (number, ())
            for number, row in self._rows(file, wanted, range(file.num_row_groups)) if wanted else ():
                files = layout.files_of(row, number + 1)
                yield layout.key(row, number + 1), layout.size(row, files, number + 1), (number, files)

    def _rows(self, file: Any, wanted: list[str], groups: range) -> Iterator[tuple[int, Mapping[str, Any]]]:
        number = sum(file.metadata.row_group(group).num_rows for group in range(groups.start))
        for batch in file.iter_batches(AT_ONCE, row_groups=list(groups), columns=wanted):
            for row in batch.to_pylist():
                yield number, row
                number += 1

    @contextlib.contextmanager
    def opened(self, wheres: Sequence[Where], seen: Seen) -> Iterator[Load]:
        """Rows in the order of the table as they come; in another order all at once, each batch read once."""
        numbers = [where[0] for where in wheres]
        ascending = sorted(numbers)
        with self._file() as file, loading(self.storage, seen) as load_files:
            stream = self._chosen(file, ascending)
            ready: dict[int, Mapping[str, Any]] = {} if numbers == ascending else dict(stream)

            def load(key: str, where: Where) -> dict[str, Any]:
                number, files = where
                row = ready.pop(number, None)
                while row is None:
                    found, row = next(stream, (-1, None))
                    if row is None:
                        raise ObjectChanged("the table has changed since it was planned.", url=self.name)
                    row = row if found == number else None
                sample = load_files(key, files)
                sample.update(self.layout.values(row, key))
                return sample

            yield load

    def _chosen(self, file: Any, numbers: list[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Some rows, by ascending numbers, out of the row groups that hold them."""
        wanted = set(numbers)
        begin = 0
        for group in range(file.num_row_groups):
            end = begin + file.metadata.row_group(group).num_rows
            if bisect_left(numbers, begin) < bisect_left(numbers, end):
                rows = self._rows(
                    file, list(self.layout.plain) or self.layout.wanted, range(group, group + 1)
                )
                yield from ((number, row) for number, row in rows if number in wanted)
            begin = end

    def files(self, where: Where) -> tuple[File, ...]:
        files: tuple[File, ...] = where[-1]
        return files

    def fingerprint(self) -> str:
        return self.near.version
