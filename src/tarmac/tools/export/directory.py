"""Files in a directory: each field of each sample becomes one, named as in the shard."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tarmac.errors import UsageError
from tarmac.jobs.task import Unit
from tarmac.samples.grouping import Sample
from tarmac.storage import is_local
from tarmac.storage.local import local_path
from tarmac.tools.export.destination import Destination, Fill, Target
from tarmac.tools.export.formats import Format, RowOptions, Writer, register_format
from tarmac.tools.show.extract import Extractor, File, files_of

MAX_FILES = 1_000
"""Files per batch: checking whether names are taken is slow one by one."""
MAX_BYTES = 16 << 20
"""Approximate bytes per batch."""


class _DirectoryWriter(Writer):
    def __init__(self, extractor: Extractor) -> None:
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

    def close(self) -> None:
        self._extractor.close()


@dataclass
class DirectoryDestination(Destination):
    """A local directory of plain files."""

    claims: str = ""
    """The file by which units that may replace files share the names they have written."""
    directory = True

    @property
    def pattern(self) -> str:
        return "{i:06d}"

    @property
    def ledger(self) -> tuple[str, str]:
        return self.output.rstrip("/") or "/", "export"

    def check(self) -> None:
        if not is_local(self.output):
            raise UsageError("a directory of files must be local.", url=self.output)

    def options(self) -> dict[str, Any]:
        return {"directory": self.output}

    def begin(self, target: Target, units: Sequence[Unit], row: RowOptions, splits: Sequence[str]) -> None:
        """Do nothing: each file is checked when it is written, and equal files may exist."""

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        yield self.ledger[0]  # the files are claimed one by one, by their names on the disk

    @contextmanager
    def prepared(self, target: Target) -> Iterator[None]:
        if not target.overwrite:
            yield
            return
        with tempfile.TemporaryDirectory(prefix="tarmac-export-") as directory:
            self.claims = os.path.join(directory, "names")
            yield

    def write(self, name: str, target: Target, row: RowOptions, fill: Fill) -> dict[str, int]:
        extractor = Extractor(local_path(self.output), overwrite=target.overwrite, claims=self.claims)
        fill(_DirectoryWriter(extractor))
        os.sync()  # the ledger must not list files that are not on the disk
        return extractor.some


def _open(file: Any, row: RowOptions) -> Writer:
    raise NotImplementedError("a directory is not one file")


register_format(Format("dir", _open, destination=DirectoryDestination))
