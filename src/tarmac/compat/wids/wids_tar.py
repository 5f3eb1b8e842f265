"""`wids.wids_tar`: access the files of a tar file by number."""

from __future__ import annotations

from tarmac.compat.wids.wids_mmtar import MMIndexedTar

TarFileReader = MMIndexedTar


def find_index_file(file: str) -> str:
    """Return the path of the pickled index that wids writes; tarmac neither reads nor writes it."""
    return f"{file}.index"
