"""Tables: each row is a sample, and columns may name files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from tarmac.errors import UsageError
from tarmac.jobs.entries import public_name
from tarmac.jobs.task import Status
from tarmac.samples.grouping import Sample
from tarmac.tools.columns import Layout
from tarmac.tools.localcopy import ensure_local, resolve_name
from tarmac.tools.pack.sources.files import file_loader, locate_file
from tarmac.tools.pack.sources.source import (
    File,
    FileStats,
    Item,
    Load,
    Location,
    Skipped,
    Source,
    SourceFormat,
    SourceOptions,
    register_source,
)
from tarmac.tools.tables import TABLES, Row, Table


@dataclass
class TableSource(Source):
    """The rows of a table. A location is the position of a row and its files."""

    format: str
    url: str
    table: Table
    options: SourceOptions

    @cached_property
    def layout(self) -> Layout:
        """What each column becomes."""
        return self.options.columns.layout(
            self.table.names, self.url, typed=self.table.typed, exported=self.table.exported
        )

    @property
    def unique_keys(self) -> bool:  # type: ignore[override]
        return not self.layout.key

    def items(self, skipped: Skipped) -> Iterator[Item]:
        layout, sized = self.layout, self.options.needs_sizes
        columns = layout.columns if sized else layout.planned
        for position, row in self.table.rows(columns):
            key, size = row.get(layout.key), 0
            files: tuple[File, ...] = ()
            if type(key) is not str or not key:
                key = layout.key_of(row, self.table.label(position))
            if layout.files:
                files = self._files(row, self.table.label(position))
            if sized:
                values = layout.values(row, self.table.label(position)).values()
                size = sum(map(len, values)) + sum(max(file[2], 0) for file in files)
            yield key, size, (*position, files)

    def _files(self, row: Row, label: str) -> tuple[File, ...]:
        options = self.options
        return tuple(
            locate_file(
                field, resolve_name(name, options.base, self.url), options.storage, options.needs_sizes
            )
            for field, name in self.layout.file_names(row, label).items()
        )

    @contextlib.contextmanager
    def opened(self, locations: Sequence[Location], stats: FileStats) -> Iterator[Load]:
        layout = self.layout
        positions = [location[:-1] for location in locations]
        columns = layout.stored or layout.columns
        with (
            self.table.reader(positions, columns) as read,
            file_loader(self.options.storage, stats) as load_files,
        ):

            def load(key: str, location: Location) -> Sample:
                row = read(location[:-1])
                sample = load_files(key, location[-1])
                sample.update(layout.values(row, key))
                return sample

            yield load

    def files(self, location: Location) -> tuple[File, ...]:
        files: tuple[File, ...] = location[-1]
        return files

    def fingerprint(self) -> str:
        return self.table.local.version

    def statuses(self) -> dict[str, Status]:
        return {public_name(self.url): self.table.local.status()}


def open_table(format: str, table: type[Table], url: str, options: SourceOptions) -> TableSource:
    """Open a table, of which a remote or compressed one is copied first."""
    if format == "lines" and (options.columns.key or options.columns.files):
        raise UsageError("lines have no columns, so `key` and `files` do not apply.", url=url)
    local = ensure_local(url, options.directory, options.storage)
    return TableSource(format, url, table(url, local), options)


def register_table(format: str, table: type[Table]) -> None:
    """Register a format of tables."""
    opened = partial(open_table, format, table)
    register_source(SourceFormat(format, opened, table.extensions, has_columns=True, lists_files=True))


for _name, _table in TABLES.items():
    register_table(_name, _table)
