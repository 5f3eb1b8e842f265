"""A lock on a file that the operating system releases when its holder dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["FileLock"]

if sys.platform == "win32":  # pragma: no cover - the same calls through msvcrt, which has no shared locks
    import msvcrt

    def _lock(fd: int, *, shared: bool, wait: bool) -> None:
        msvcrt.locking(fd, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(fd: int, *, shared: bool, wait: bool) -> None:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


class FileLock:
    """Held shared by readers of a file and exclusively by whoever replaces or removes it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def share(self) -> None:
        """Wait until no one holds it exclusively; also steps down from an exclusive hold."""
        _lock(self._fd, shared=True, wait=True)

    def own(self) -> None:
        """Wait until no one else holds it."""
        _lock(self._fd, shared=False, wait=True)

    def try_own(self) -> bool:
        """Take it exclusively if no one else holds it."""
        try:
            _lock(self._fd, shared=False, wait=False)
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
