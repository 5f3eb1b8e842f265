"""Files of a directory: every field of every sample is one, as it was in its shard."""

from __future__ import annotations

from tarmac.samples.grouping import Sample
from tarmac.tools.export.form import Writer
from tarmac.tools.extract import Extractor

__all__ = ["DirectoryWriter", "open_directory"]


def open_directory(directory: str, *, overwrite: bool) -> DirectoryWriter:
    """Begin to fill a directory."""
    return DirectoryWriter(Extractor(directory, overwrite=overwrite))


class DirectoryWriter(Writer):
    """Fills a directory."""

    def __init__(self, extractor: Extractor) -> None:
        self.extractor = extractor

    def add(self, sample: Sample) -> int:
        return self.extractor.add(sample)

    def close(self) -> None:
        self.extractor.close()
