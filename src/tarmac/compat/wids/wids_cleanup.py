"""`wids.wids_cleanup`: directories that do not grow for ever."""

from __future__ import annotations

from tarmac.compat.wids_helpers import (
    keep_most_recent_files,
)

__all__ = [
    "keep_most_recent_files",
]
