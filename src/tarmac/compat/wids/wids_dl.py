"""`wids.wids_dl`: files from anywhere."""

from __future__ import annotations

from tarmac.compat.wids_helpers import (
    download_and_open,
    download_file,
)

__all__ = [
    "download_and_open",
    "download_file",
]
