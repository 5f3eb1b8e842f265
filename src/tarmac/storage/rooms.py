"""The directories of a cache: entries, notes, part files, locks, and a clock that never goes backwards."""

from __future__ import annotations

import contextlib
import errno
import os
import stat as modes
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tarmac.storage.folder import Folder
from tarmac.storage.locks import FileLock, try_lock
from tarmac.storage.security import is_secure

__all__ = ["BUDGET", "Rooms", "open_rooms"]

BUDGET = "budget"
"""The lock that a process holds for a moment to add or remove entries."""
_CLOCK = "clock"
_TICK = 1000  # nanoseconds; the finest that all file systems in use keep


@dataclass(frozen=True, slots=True)
class Rooms:
    """The directories of a cache, open."""

    root: Folder
    home: Folder
    notes: Folder
    parts: Folder
    locks: Folder

    @contextlib.contextmanager
    def locked(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold a lock by its name; false if another process has it and `wait` is not set."""
        lock = FileLock(name, self.locks)
        try:
            yield lock.own(wait=wait)
        finally:
            lock.release()

    def stamp(self) -> int:
        """Return the time for an entry that is used now: later than any before, however the clock jumps."""
        found = self.home.stat(_CLOCK)
        if found is None:
            with contextlib.suppress(OSError):
                os.close(self.home.create(_CLOCK))
        now = max(time.time_ns(), 0 if found is None else found.st_mtime_ns + _TICK)
        self.home.set_time(_CLOCK, now)
        return now

    def remove_unused(self, name: str) -> int:
        """Remove an entry that no one reads; return the bytes it had."""
        try:
            fd = self.root.open(name, os.O_RDWR)
        except PermissionError:
            fd = self.root.open(name)
        try:
            return self.remove(name) if try_lock(fd) else 0
        finally:
            os.close(fd)

    def remove(self, name: str) -> int:
        """Remove an entry and its note; return the bytes it had."""
        freed = self.root.remove(name)
        self.notes.remove(name)
        return freed


@contextlib.contextmanager
def open_rooms(path: Path, *, make: bool = False) -> Iterator[Rooms]:
    """Open the directories of a cache; in secure mode only where no other user can have filled them."""
    if make:
        path.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(_checked(Folder(path)))
        home = stack.enter_context(_checked(root.inner(".tarmac", make=make)))
        inner = [stack.enter_context(home.inner(name, make=make)) for name in ("notes", "parts", "locks")]
        yield Rooms(root, home, *inner)


def _checked(folder: Folder) -> Folder:
    """Refuse, in secure mode, a directory that is another user's or that everybody may write to."""
    found = os.fstat(folder.fd)
    if is_secure() and (found.st_uid not in (0, os.geteuid()) or found.st_mode & modes.S_IWOTH):
        folder.close()
        what = "secure mode uses no cache directory of another user, or that all users may write to"
        raise PermissionError(errno.EPERM, what, str(folder.path))
    return folder
