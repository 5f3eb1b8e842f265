"""`wids.wids_tar`: the files in a tar file by number."""

from __future__ import annotations

from tarmac.compat.wids_helpers import (
    TarFileReader,
    find_index_file,
)

__all__ = [
    "TarFileReader",
    "find_index_file",
]
