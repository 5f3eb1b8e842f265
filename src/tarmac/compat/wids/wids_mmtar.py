"""`wids.wids_mmtar`: the files in a tar file by number."""

from __future__ import annotations

from tarmac.compat.wids_helpers import (
    MMIndexedTar,
    keep_while_reading,
)

__all__ = [
    "MMIndexedTar",
    "keep_while_reading",
]
