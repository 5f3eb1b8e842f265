"""Files of a directory: every field of every sample is one, as it was in its shard."""

from __future__ import annotations

from tarmac.samples.grouping import Sample
from tarmac.tools.export.form import Writer
from tarmac.tools.show.extract import Extractor, File, files_of

__all__ = ["DirectoryWriter", "open_directory"]

FILES = 1_000
"""Files that are written together, at most: to ask whether their names are free takes long for each alone."""
BYTES = 16 << 20
"""... and about how many bytes."""


def open_directory(directory: str, *, overwrite: bool, claims: str = "") -> DirectoryWriter:
    """Begin to fill a directory; those that do so together have the same `claims`."""
    return DirectoryWriter(Extractor(directory, overwrite=overwrite, claims=claims))


class DirectoryWriter(Writer):
    """Fills a directory."""

    def __init__(self, extractor: Extractor) -> None:
        self.extractor = extractor
        self._waiting: list[File] = []
        self._bytes = 0

    def add(self, sample: Sample) -> int:
        files = files_of(sample)
        size = sum(len(data) for _, data in files)
        self._waiting += files
        self._bytes += size
        if len(self._waiting) >= FILES or self._bytes >= BYTES:
            self.finish()
        return size

    def finish(self) -> None:
        files, self._waiting, self._bytes = self._waiting, [], 0
        self.extractor.put(files)

    def close(self) -> None:
        self.extractor.close()
