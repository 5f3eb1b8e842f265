"""The directories of a cache: entries, the notes beside them, part files, locks, and a monotonic clock."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat as modes
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tarmac.environment import is_secure
from tarmac.limits import KIB
from tarmac.storage.folder import Folder
from tarmac.storage.locks import FileLock, try_lock

BUDGET = "budget"
"""The lock that a process holds briefly to add or remove entries."""
MAX_NOTE = 64 * KIB
_CLOCK = "clock"
_TICK = 1000  # nanoseconds; the finest resolution that all common file systems have


@dataclass(frozen=True, slots=True)
class Note:
    """The recorded properties of an entry, to verify it against."""

    url: str
    """A hash of the URL, which may contain secrets."""
    size: int
    digest: str
    version: str | None
    shown: str = ""
    """The URL without secrets, for display."""


@dataclass(frozen=True, slots=True)
class CacheDirs:
    """The open directories of a cache."""

    root: Folder
    home: Folder
    notes: Folder
    parts: Folder
    locks: Folder

    @contextlib.contextmanager
    def locked(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold a lock by its name; yield False if another process has it and `wait` is false."""
        lock = FileLock(name, self.locks)
        try:
            yield lock.acquire(wait=wait)
        finally:
            lock.release()

    def entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the name and status of each entry; files without a note are not part of the cache."""
        for name in self.notes.names():
            status = self.root.stat(name)
            if status is not None:
                yield name, status

    def read_note(self, name: str) -> Note | None:
        """Return the note of an entry, or None if it is missing or invalid."""
        try:
            with open(self.notes.open(name), "rb") as file:
                return Note(**json.loads(file.read(MAX_NOTE)))
        except (OSError, ValueError, TypeError, RecursionError):
            return None

    def write_note(self, name: str, note: Note) -> None:
        """Write the note of an entry atomically."""
        draft = part_name(name)
        try:
            with open(self.parts.create(draft), "w") as file:
                json.dump(asdict(note), file)
            self.parts.move(draft, self.notes, name)
        finally:
            self.parts.remove(draft)

    def stamp(self) -> int:
        """Return the time of use for an entry: later than all previous ones, even if the clock is set back."""
        last = self.home.stat(_CLOCK)
        if last is None:
            with contextlib.suppress(OSError):
                os.close(self.home.create(_CLOCK))
        now = max(time.time_ns(), 0 if last is None else last.st_mtime_ns + _TICK)
        self.home.set_time(_CLOCK, now)
        return now

    def remove_unused(self, name: str) -> int:
        """Remove an entry unless it is being read; return the bytes freed."""
        with self._locked_unless_used(name) as unused:
            return self.remove(name) if unused else 0

    def unused_bytes(self, name: str) -> int:
        """Return the bytes that `remove_unused` would free."""
        with self._locked_unless_used(name) as unused:
            status = self.root.stat(name) if unused else None
            return 0 if status is None else status.st_size

    @contextlib.contextmanager
    def _locked_unless_used(self, name: str) -> Iterator[bool]:
        """Lock an entry unless it is being read; yield whether that succeeded."""
        try:
            fd = self.root.open(name, os.O_RDWR)
        except PermissionError:
            fd = self.root.open(name)
        try:
            yield try_lock(fd)
        finally:
            os.close(fd)

    def remove(self, name: str) -> int:
        """Remove an entry and its note; return the bytes freed."""
        freed = self.root.remove(name)
        self.notes.remove(name)
        return freed


def part_name(entry: str) -> str:
    """Return a new name for a part file of an entry."""
    return f"{entry}.{uuid.uuid4().hex[:16]}"


@contextlib.contextmanager
def open_cache_dirs(path: Path, *, create: bool = False) -> Iterator[CacheDirs]:
    """Open the directories of a cache; in secure mode, raise if another user can write to them."""
    if create:
        path.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(_checked(Folder(path)))
        home = stack.enter_context(_checked(root.open_folder(".tarmac", create=create)))
        names = ("notes", "parts", "locks")
        inner = [stack.enter_context(home.open_folder(name, create=create)) for name in names]
        yield CacheDirs(root, home, *inner)


def _checked(folder: Folder) -> Folder:
    """In secure mode, raise if the directory belongs to another user or is writable by all."""
    status = os.fstat(folder.fd)
    if is_secure() and (status.st_uid not in (0, os.geteuid()) or status.st_mode & modes.S_IWOTH):
        folder.close()
        what = "secure mode forbids a cache directory that other users own or can write to"
        raise PermissionError(errno.EPERM, what, str(folder.path))
    return folder
