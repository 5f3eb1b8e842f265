"""Text files of which each record is a sample: planned by where records begin, read again from there."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tarmac.errors import ObjectChanged
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tools.pack.sources.columns import Columns, Layout
from tarmac.tools.pack.sources.files import loading
from tarmac.tools.pack.sources.near import Near
from tarmac.tools.pack.sources.source import File, Item, Load, Seen, Skipped, Source, Where

__all__ = ["Record", "Rows"]

Record = tuple[int, int, int, Mapping[str, Any]]
"""Number (from 1), begin and length in bytes, and values by column."""


@dataclass
class Rows(Source):
    """A file of records."""

    name: str
    near: Near
    columns: Columns = field(default_factory=Columns)
    storage: StorageOptions = DEFAULT_STORAGE

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """All records, from front to back."""

    @abstractmethod
    def parsed(self, text: bytes, number: int) -> Mapping[str, Any]:
        """The values of one record."""

    @abstractmethod
    def names(self) -> list[str]:
        """The columns."""

    @cached_property
    def layout(self) -> Layout:
        """What each column becomes."""
        return self.columns.layout(self.names(), self.name)

    def items(self, skipped: Skipped) -> Iterator[Item]:
        layout = self.layout
        for number, begin, length, row in self.records():
            files = layout.files_of(row, number)
            yield layout.key(row, number), layout.size(row, files, number), (number, begin, length, files)

    @contextlib.contextmanager
    def opened(self, wheres: Sequence[Where], seen: Seen) -> Iterator[Load]:
        """Rows by where they begin, in any order."""
        with self.near.opened(self.name) as fd, loading(self.storage, seen) as load_files:
            layout = self.layout

            def load(key: str, where: Where) -> dict[str, Any]:
                number, begin, length, files = where
                text = os.pread(fd, length, begin)
                if len(text) != length:
                    raise ObjectChanged("the table has changed since it was planned.", url=self.name)
                sample = load_files(key, files)
                sample.update(layout.values(self.parsed(text, number), key))
                return sample

            yield load

    def files(self, where: Where) -> tuple[File, ...]:
        files: tuple[File, ...] = where[-1]
        return files

    def fingerprint(self) -> str:
        return self.near.version
