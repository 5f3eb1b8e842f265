"""Files in a directory: each field of each sample becomes one, named as in the shard."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from tarmac.errors import UsageError
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.task import Outcome, Unit
from tarmac.samples.grouping import Sample
from tarmac.storage import is_local
from tarmac.storage.local import local_path
from tarmac.tools.export.destination import Destination
from tarmac.tools.export.formats import RowOptions, Writer
from tarmac.tools.show.extract import Extractor, File, files_of
from tarmac.tools.workdir import work_directory

MAX_FILES = 1_000
"""Files per batch: checking whether names are taken is slow one by one."""
MAX_BYTES = 16 << 20
"""Approximate bytes per batch."""


class DirectoryWriter(Writer):
    """Writes the fields of samples as files, in batches."""

    def __init__(self, extractor: Extractor, row: RowOptions) -> None:
        self._extractor = extractor
        self._files: list[File] = []
        self._bytes = 0

    def add(self, sample: Sample) -> int:
        files = files_of(sample)
        size = sum(len(data) for _, data in files)
        self._files += files
        self._bytes += size
        if len(self._files) >= MAX_FILES or self._bytes >= MAX_BYTES:
            self.finish()
        return size

    def finish(self) -> None:
        files, self._files, self._bytes = self._files, [], 0
        self._extractor.put(files)


@dataclass(frozen=True, kw_only=True)
class DirectoryDestination(Destination):
    """A local directory of plain files."""

    lists_outputs = False
    names_files = False
    claims: str = ""
    """The file by which units that may replace files share the names they have written."""

    @classmethod
    def to(cls, output: str, **options: Any) -> Self:
        return cls("{i:06d}", directory=output, **options)

    def __post_init__(self) -> None:
        if not is_local(self.directory):
            raise UsageError("a directory of files must be local.", url=self.directory)
        super().__post_init__()

    @property
    def ledger(self) -> str:
        return ledger_url(self._root, "export")

    def options(self) -> dict[str, Any]:
        return super().options() | {"directory": self.directory}

    def begin(self, units: Sequence[Unit], row: RowOptions, splits: Sequence[str]) -> None:
        """Do nothing: each file is checked when it is written, and equal files may exist."""

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        yield self._root  # the files are claimed one by one, by their names on the disk

    @contextmanager
    def prepared(self, shared: str | None = None) -> Iterator[Destination]:
        if not self.overwrite:
            yield self
            return
        with work_directory("export", None, shared) as directory:
            yield replace(self, claims=os.path.join(directory, "names"))

    @contextmanager
    def opened(self, name: str, row: RowOptions, outcome: Outcome) -> Iterator[Writer]:
        path = local_path(self.directory)
        with Extractor(path, overwrite=self.overwrite, claims=self.claims) as extractor:
            writer = self.format.open(extractor, row)
            yield writer
            writer.finish()
        os.sync()  # the ledger must not list files that are not on the disk
        outcome.outputs |= extractor.some
