"""`wids.wids_cleanup`: limit the size of a directory."""

from __future__ import annotations

import contextlib
import glob
import os


def keep_most_recent_files(
    pattern: str, maxsize: int = 10**12, maxfiles: int = 1000, debug: bool = False
) -> None:
    """Keep the newest files that match a pattern, up to `maxsize` bytes and `maxfiles` files. Remove the others."""
    del debug
    files = []
    for name in glob.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            stat = os.stat(name)
            files.append((stat.st_mtime_ns, name, stat.st_size))
    total, full = 0, False
    for number, (_, name, size) in enumerate(sorted(files, reverse=True)):
        total += size
        full = full or total > maxsize or number >= maxfiles
        if full:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
