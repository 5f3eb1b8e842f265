"""A directory of downloaded shards, shared safely by any number of processes.

An entry's name is a hash of the whole URL plus a readable tail, so different URLs never meet. A
download goes to a part file and gets its name only when it is whole and is a shard; a note beside it holds
size and digest, which each process compares the first time it opens the entry. An entry that a reader finds
damaged is removed. One lock per name keeps two processes from downloading the same shard; readers hold a
shared lock on the entry itself, which tells evictors to leave it. The system releases the locks of killed
processes. Several users may share a directory, so nothing in it is opened through a symbolic link.

    DIRECTORY/<hash>-train-000000.tar   entries, and whatever else the user keeps here, untouched
    DIRECTORY/.tarmac/notes, parts, locks, clock
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tarmac.display import display_url
from tarmac.errors import (
    AccessDenied,
    ArchiveError,
    CacheDisabled,
    IndexingError,
    LimitExceeded,
    NotFound,
    TarmacError,
    TransferError,
    UnsupportedMember,
)
from tarmac.limits import MIB
from tarmac.storage import schemes
from tarmac.storage.folder import Folder
from tarmac.storage.local import LocalSource
from tarmac.storage.locks import FileLock, try_lock
from tarmac.storage.notes import Note, check_shard, digest_of, key_of, read_note, write_all, write_note
from tarmac.storage.rooms import BUDGET, Rooms, open_rooms
from tarmac.storage.types import DEFAULT_STORAGE, Source, StorageOptions

__all__ = ["Cache", "CacheEntry"]

_NOT_CACHED = frozenset(("", "file", "-"))
_NOTHING_THERE = contextlib.suppress(FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One shard that is kept."""

    name: str
    """The name of its file in the directory."""
    url: str
    """Where it came from, without secrets; empty where that was not written down."""
    size: int
    used: float
    """When it was last used, in seconds since 1970."""


@dataclass(slots=True)
class Cache:
    """Keep remote shards under `directory`, up to `max_bytes` in all.

    Least recently used entries go first; entries that are being read never do. With `revalidate` the
    store is asked on each use whether the object has changed.
    """

    directory: str | os.PathLike[str]
    max_bytes: int | None = None
    revalidate: bool = False
    readable: Callable[[str], str] | None = None
    """Makes the readable tail of an entry's name from its URL; the hash before it keeps entries apart."""
    check: Callable[[LocalSource], None] | None = check_shard
    """Raises an ArchiveError for what must not be kept; None keeps files of any kind."""
    _checked: set[tuple[str, int, int]] = field(default_factory=set, init=False, repr=False)
    _disabled: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ValueError(f"Cache.max_bytes must be positive, got {self.max_bytes}")

    @property
    def _root(self) -> Path:
        return Path(self.directory).expanduser()

    def path_of(self, url: str) -> Path:
        """Return where the entry of a URL is or would be."""
        # The tail is for people. It must not hold what a URL or a command may hide.
        last = "" if url.startswith("pipe:") else display_url(url).partition("?")[0].rpartition("/")[2]
        last = last if self.readable is None else self.readable(url)
        tail = re.sub(r"[^A-Za-z0-9._-]+", "_", last)[-80:]
        return self._root / f"{key_of(url)[:32]}-{tail}"

    def open_read(
        self, url: str, options: StorageOptions = DEFAULT_STORAGE, version: str | None = None
    ) -> Source:
        """Open a shard from the cache, downloading it first if need be. Local files are opened directly.

        An entry of another `version` than the one given is not used. What is not a shard is an error, and
        is not kept.
        """
        if schemes.scheme_of(url) in _NOT_CACHED:
            return schemes.open_read(url, options)
        source = self._cached(url, options, version)
        if source is None and not self._disabled:
            try:
                source = self._fetch(url, options, version)
            except TarmacError:
                raise  # of the store, not of the directory
            except OSError as error:
                # The directory is full, read-only or gone: the data is still there to be streamed.
                self._disabled = True
                what = f"{self._root}: {error.strerror or error}; shards are streamed."
                warnings.warn(what, CacheDisabled, stacklevel=3)
        return schemes.open_read(url, options) if source is None else source

    def retire(self, url: str) -> None:
        """Make the entry of a URL the first to go when room is needed: it will not be used for long."""
        with contextlib.suppress(OSError), Folder(self._root) as root:
            root.set_time(self.path_of(url).name, 0)

    def warm(self, url: str, options: StorageOptions = DEFAULT_STORAGE) -> bool | None:
        """Download a shard unless it is there and whole; say whether it was, or None if it cannot be kept."""
        if schemes.scheme_of(url) in _NOT_CACHED:
            return None
        source = self._cached(url, options)
        there = source is not None
        if source is None:
            source = self._fetch(url, options)
        if source is None:
            return None
        source.close()
        return there if isinstance(source, LocalSource) else None

    def entries(self) -> list[CacheEntry]:
        """What is kept, that which was unused for longest first."""
        found = []
        with _NOTHING_THERE, self._looked_after() as rooms:
            for name in rooms.notes.names():
                file, note = rooms.root.stat(name), read_note(rooms.notes, name)
                if file is not None:
                    shown = "" if note is None else note.shown
                    found.append(CacheEntry(name, shown, file.st_size, file.st_mtime))
        return sorted(found, key=lambda entry: (entry.used, entry.name))

    def entry_of(self, url: str) -> CacheEntry | None:
        """The entry of a URL, whatever the readable part of its name is."""
        prefix = f"{key_of(url)[:32]}-"
        return next((entry for entry in self.entries() if entry.name.startswith(prefix)), None)

    def is_sound(self, name: str) -> bool:
        """Whether an entry is a shard and still has the size and the digest that it was downloaded with."""
        with self._looked_after() as rooms:
            note = read_note(rooms.notes, name)
            if note is None:
                return False
            try:
                fd = rooms.root.open(name)
            except FileNotFoundError:
                raise NotFound("the entry is gone.", url=str(self._root / name)) from None
            except OSError as error:
                if isinstance(error, PermissionError):
                    raise
                return False  # a link, or a pipe
            with _Kept(self, name, fd) as source:
                return self._sound(source, note)

    def remove(self, name: str) -> bool:
        """Remove an entry, unless someone is reading it; say whether it is gone."""
        try:
            with self._open() as rooms:
                with rooms.locked(BUDGET), contextlib.suppress(OSError):
                    rooms.remove_unused(name)
                return rooms.root.stat(name) is None
        except OSError:
            return False

    def discard(self, name: str, identity: tuple[int, int]) -> bool:
        """Remove an entry that was found to be damaged, unless it was replaced; say whether that is done."""
        try:
            with self._open() as rooms, rooms.locked(BUDGET):
                found = rooms.root.stat(name)
                if found is not None and (found.st_dev, found.st_ino) == identity:
                    rooms.remove(name)
                    return rooms.root.stat(name) is None
        except OSError:
            return False
        return True

    def clean(self) -> int:
        """Remove what killed downloads left behind and shrink to the budget; return the bytes freed."""
        freed = 0
        with _NOTHING_THERE, self._looked_after() as rooms:
            for part in rooms.parts.names():
                with (
                    contextlib.suppress(PermissionError),  # another user's
                    rooms.locked(part.rpartition(".")[0], wait=False) as owned,
                ):
                    freed += rooms.parts.remove(part) if owned else 0
            for name in rooms.locks.names():
                held = FileLock(name, rooms.locks)
                with contextlib.suppress(PermissionError):
                    if name != BUDGET and held.own(wait=False):
                        held.remove()
            with rooms.locked(BUDGET):
                freed += self._evict(rooms, 0)
                for name in rooms.notes.names():
                    if rooms.root.stat(name) is None:
                        freed += rooms.notes.remove(name)
        return freed

    def _open(self, *, make: bool = False) -> contextlib.AbstractContextManager[Rooms]:
        return open_rooms(self._root, make=make)

    @contextlib.contextmanager
    def _looked_after(self) -> Iterator[Rooms]:
        """Open the directories for their own sake: that they may not be opened is an error."""
        try:
            with self._open() as rooms:
                yield rooms
        except PermissionError as error:
            raise AccessDenied(f"{error.strerror or error}.", url=str(self._root)) from None

    def _cached(self, url: str, options: StorageOptions, version: str | None = None) -> Source | None:
        """Open the entry if it is there and is what it should be."""
        name = self.path_of(url).name
        try:
            with self._open() as rooms:
                note = read_note(rooms.notes, name)
                if note is None:
                    return None
                source = _Kept(self, name, rooms.root.open(name), note.version)
                try:
                    # From here on evictors pass by; if one came first, the open file is still ours to read.
                    try_lock(source.fileno(), shared=True)
                    alike = source.length == note.size and note.url == key_of(url)
                    if alike and self._intact(source, note) and self._current(note, url, options, version):
                        rooms.root.set_time(name, rooms.stamp())
                        return source
                except BaseException:
                    source.close()
                    raise
                source.close()
        except TarmacError:
            raise
        except OSError:
            pass
        return None

    def _intact(self, source: _Kept, note: Note) -> bool:
        """Whether an entry is sound, or was when this process first opened it."""
        seen = source.name, source.identity[1], source.length or 0
        if seen not in self._checked:
            if not self._sound(source, note):
                return False
            self._checked.add(seen)
        return True

    def _sound(self, source: _Kept, note: Note) -> bool:
        """Whether an entry is what was downloaded, and is a shard: earlier versions kept anything."""
        try:
            if self.check is not None:
                self.check(source)
        except ArchiveError:
            return False
        return source.length == note.size and digest_of(source) == note.digest

    def _current(self, note: Note, url: str, options: StorageOptions, version: str | None) -> bool:
        if version is not None:
            return note.version in (None, version)
        if not self.revalidate:
            return True
        now = schemes.stat(url, options)
        return now.size == note.size if now.version is None else now.version == note.version

    def _fetch(self, url: str, options: StorageOptions, version: str | None = None) -> Source | None:
        """Download the entry unless another process just did; None if it is larger than the budget."""
        name = self.path_of(url).name
        with self._open(make=True) as rooms, rooms.locked(name):
            source = self._cached(url, options, version)
            if source is not None:
                return source
            for stale in rooms.parts.names(name):
                rooms.parts.remove(stale)  # its download is over: the lock is ours
            remote = schemes.open_read(url, options)
            if self.max_bytes is not None and (remote.length or 0) > self.max_bytes:
                return remote
            part = _part_name(name)
            try:
                with remote:
                    kept = _Kept(self, name, rooms.parts.create(part), remote.version)
                    try:
                        note = self._download(remote, kept, url)
                        if note is not None:
                            self._publish(rooms, part, kept, note)
                            return kept
                    except BaseException:
                        kept.close()
                        raise
                    kept.close()
                return None
            finally:
                rooms.parts.remove(part)

    def _download(self, remote: Source, kept: _Kept, url: str) -> Note | None:
        """Fill a part file; None if that is larger than the budget."""
        import xxhash

        hasher, size, fd = xxhash.xxh3_64(), 0, kept.fileno()
        while chunk := remote.read(MIB):
            hasher.update(chunk)
            size += len(chunk)
            if self.max_bytes is not None and size > self.max_bytes:
                return None
            write_all(fd, chunk)
        if os.fstat(fd).st_size != size:
            raise TransferError(f"the part file does not hold the {size} bytes written to it.", url=url)
        try:
            if self.check is not None:
                self.check(kept)
        except ArchiveError as error:
            error.hint = "read it again when the server has the shard; the cache did not keep these bytes."
            raise error.at(url=url) from None
        os.lseek(fd, 0, os.SEEK_SET)
        kept.length = size
        return Note(key_of(url), size, hasher.hexdigest(), remote.version, display_url(url))

    def _publish(self, rooms: Rooms, part: str, kept: _Kept, note: Note) -> None:
        """Make room and give the part its name, while it is open: nobody can evict or exchange it."""
        name = kept.name
        try_lock(kept.fileno(), shared=True)
        with rooms.locked(BUDGET):
            rooms.root.remove(name)
            self._evict(rooms, note.size)
            # The note comes first: an entry without one would be nobody's to evict.
            write_note(rooms.parts, _part_name(name), rooms.notes, name, note)
            rooms.parts.move(part, rooms.root, name)
            found = rooms.root.stat(name)
            if found is None or (found.st_dev, found.st_ino) != kept.identity:
                rooms.remove(name)  # somebody has put another file in the place of the part
                return
            rooms.root.set_time(name, rooms.stamp())
        self._checked.add((name, kept.identity[1], note.size))

    def _evict(self, rooms: Rooms, incoming: int) -> int:
        """Make room for `incoming` bytes by removing the entries unused for longest; return what that freed.

        Only files that have a note are ours to remove.
        """
        if self.max_bytes is None:
            return 0
        entries = []
        for name in rooms.notes.names():
            found = rooms.root.stat(name)
            if found is not None:
                entries.append((found.st_mtime_ns, found.st_size, name))
        freed, excess = 0, sum(size for _, size, _ in entries) + incoming - self.max_bytes
        for _, _, name in sorted(entries):
            if freed >= excess:
                break
            with contextlib.suppress(OSError):
                freed += rooms.remove_unused(name)
        return freed


class _Kept(LocalSource):
    """An entry of a cache, open."""

    def __init__(self, cache: Cache, name: str, fd: int, version: str | None = None) -> None:
        super().__init__(str(cache._root / name), fd)
        found = os.fstat(fd)
        self.name, self.version = name, version
        self.identity = found.st_dev, found.st_ino
        self._cache = cache

    def blame(self, error: TarmacError) -> None:
        """Remove what is damaged, so that it is downloaded again, and say so."""
        wrong = isinstance(error, ArchiveError | IndexingError)
        if not wrong or isinstance(error, LimitExceeded | UnsupportedMember):
            return
        if self._cache.discard(self.name, self.identity):
            error.hint = (
                f"read it again: these bytes were in the cache as {self._url}. They are removed now, and the "
                "shard is downloaded again. If the error comes back, it is damaged where it is stored."
            )
        else:
            error.hint = f"these bytes are in the cache as {self._url}: remove that file and read it again."


def _part_name(entry: str) -> str:
    """Choose a name for a part file, from which its entry can be told."""
    return f"{entry}.{uuid.uuid4().hex[:16]}"
