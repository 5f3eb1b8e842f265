"""`wids.wids_cleanup`: limit the size of a directory."""

from __future__ import annotations

import glob
import os

from tarmac.compat.webdataset.cache import remove_oldest


def keep_most_recent_files(
    pattern: str, maxsize: int = 10**12, maxfiles: int = 1000, debug: bool = False
) -> None:
    """Keep the newest files that match a pattern, up to `maxsize` bytes and `maxfiles` files. Remove the others."""
    remove_oldest(glob.glob(pattern), maxsize, maxfiles, keyfn=os.path.getmtime, verbose=debug)
