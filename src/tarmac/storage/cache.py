"""A directory of downloaded shards, shared safely by any number of processes.

The name of an entry is a hash of the whole URL plus a readable suffix, so URLs never collide. A download
goes to a part file, which is renamed when it is complete and is a shard. A note beside it holds size and
digest, which each process verifies when it first opens the entry. A damaged entry is removed. One lock per
name keeps two processes from downloading the same shard; readers hold a shared lock on the entry itself,
which protects it from eviction, also while it is mapped without a descriptor (`mapped.py`). The system releases
the locks of killed processes. Several users may share a directory, so nothing in it is opened through a symbolic
link.

    DIRECTORY/<hash>-train-000000.tar   entries; other files of the user are left alone
    DIRECTORY/.tarmac/notes, parts, locks, clock
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tarmac.display import display_url
from tarmac.errors import (
    AccessDenied,
    ArchiveError,
    CacheDisabled,
    CacheFull,
    IndexingError,
    LimitExceeded,
    NotFound,
    TarmacError,
    TransferError,
    UnsupportedMember,
    UsageError,
)
from tarmac.limits import MIB
from tarmac.storage import schemes
from tarmac.storage.cachedirs import BUDGET, CacheDirs, Note, open_cache_dirs, part_name
from tarmac.storage.folder import Folder
from tarmac.storage.local import LocalSource
from tarmac.storage.locks import FileLock, try_lock
from tarmac.storage.types import DEFAULT_STORAGE, Source, StorageOptions
from tarmac.tar import check_beginning

_IF_EXISTS = contextlib.suppress(FileNotFoundError, NotADirectoryError)


def check_shard(source: LocalSource) -> None:
    """Raise an ArchiveError if a file does not begin like a shard, compressed or not."""
    with contextlib.suppress(ImportError):  # the decompressor is not installed; readers report that
        check_beginning(source)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One cached shard."""

    name: str
    """The name of its file in the directory."""
    url: str
    """The URL of the shard without secrets; empty if it was not recorded."""
    size: int
    """The size of the file in bytes."""
    used: float
    """The time of its last use, in seconds since 1970."""


@dataclass(slots=True, repr=False)
class Cache:
    """A directory of downloaded shards; the least recently used ones are evicted first.

    Any number of processes can share the directory. Entries that are being read are never evicted: a shard for
    which they leave no room is read from its store.
    """

    directory: str | os.PathLike[str]
    """The directory; it is created when needed."""
    max_bytes: int | None = None
    """The largest total size of the entries; None for no limit."""
    revalidate: bool = False
    """Ask the store on each use whether the object has changed."""
    readable: Callable[[str], str] | None = None
    """Returns the readable suffix of an entry's name for a URL; the hash before it makes the name unique."""
    check: Callable[[LocalSource], None] | None = check_shard
    """Raises an ArchiveError for a file that must not be cached; None accepts all files."""
    _checked: set[tuple[str, int, int]] = field(default_factory=set, init=False, repr=False)
    _disabled: bool = field(default=False, init=False, repr=False)
    _was_full: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < 1:
            raise UsageError(f"expected 1 or more, got {self.max_bytes}.", field="max_bytes")

    def __repr__(self) -> str:
        options = (("max_bytes", self.max_bytes), ("revalidate", self.revalidate))
        shown = "".join(f", {name}={value!r}" for name, value in options if value)
        return f"Cache({os.fspath(self.directory)!r}{shown})"

    @property
    def _root(self) -> Path:
        return Path(self.directory).expanduser()

    def path_of(self, url: str) -> Path:
        """Return the path of the entry for a URL, whether it exists or not."""
        # The suffix is for people. It must not contain the secrets of a URL or a command.
        last = "" if url.startswith("pipe:") else display_url(url).partition("?")[0].rpartition("/")[2]
        last = last if self.readable is None else self.readable(url)
        suffix = re.sub(r"[^A-Za-z0-9._-]+", "_", last)[-80:]
        return self._root / f"{_key_of(url)[:32]}-{suffix}"

    def open_read(
        self, url: str, storage: StorageOptions = DEFAULT_STORAGE, version: str | None = None
    ) -> Source:
        """Open a shard from the cache, after downloading it if needed. Local files are opened directly.

        An entry with another `version` than the given one is not used. A file that is not a shard raises an
        error and is not cached.
        """
        if not _is_cacheable(url):
            return schemes.open_read(url, storage)
        source = self._cached(url, storage, version)
        if source is None and not self._disabled:
            try:
                source = self._fetch(url, storage, version)
            except TarmacError:
                raise  # from the store, not from the directory
            except _NoRoom:
                self._warn_of_size()
            except OSError as error:
                # The directory is full, read-only or missing, but the shard can still be streamed.
                self._disabled = True
                what = f"{self._root}: {error.strerror or error}; shards are streamed."
                warnings.warn(what, CacheDisabled, stacklevel=3)
        return schemes.open_read(url, storage) if source is None else source

    def open_early(self, url: str, storage: StorageOptions, room: Callable[[], int]) -> Source | None:
        """Open a shard as `open_read` does, before it is needed.

        Return None, and keep nothing, if it has to be downloaded and has more than `room()` bytes, which may change
        in the meantime.
        """
        source = self._cached(url, storage)
        if source is None and not self._disabled:
            with contextlib.suppress(_NoRoom):
                source = self._fetch(url, storage, room=room)
        if source is None or isinstance(source, LocalSource) or self._is_too_large(source.length or 0):
            return source
        source.close()
        return None

    def retire(self, url: str) -> None:
        """Make the entry of a URL the first to be evicted, because it will not be used again soon."""
        with contextlib.suppress(OSError), Folder(self._root) as root:
            root.set_time(self.path_of(url).name, 0)

    def warm(self, url: str, storage: StorageOptions = DEFAULT_STORAGE) -> bool | None:
        """Download a shard unless it is cached; return whether it was, or None if it cannot be cached."""
        if not _is_cacheable(url):
            return None
        source = self._cached(url, storage)
        existed = source is not None
        if source is None:
            with contextlib.suppress(_NoRoom):
                source = self._fetch(url, storage)
        if source is None:
            return None
        source.close()
        return existed if isinstance(source, LocalSource) else None

    def entries(self) -> list[CacheEntry]:
        """Return the cached shards, the least recently used first."""
        entries = []
        with _IF_EXISTS, self._open_or_raise() as dirs:
            for name, status in dirs.entries():
                note = dirs.read_note(name)
                shown = "" if note is None else note.shown
                entries.append(CacheEntry(name, shown, status.st_size, status.st_mtime))
        return sorted(entries, key=lambda entry: (entry.used, entry.name))

    def entry_of(self, url: str) -> CacheEntry | None:
        """Return the entry of a URL, whatever the readable suffix of its name."""
        prefix = f"{_key_of(url)[:32]}-"
        return next((entry for entry in self.entries() if entry.name.startswith(prefix)), None)

    def is_sound(self, name: str) -> bool:
        """Return whether an entry is a shard with the size and digest that it was downloaded with."""
        with self._open_or_raise() as dirs:
            note = dirs.read_note(name)
            if note is None:
                return False
            try:
                fd = dirs.root.open(name)
            except FileNotFoundError:
                raise NotFound("the entry does not exist.", url=str(self._root / name)) from None
            except PermissionError:
                raise
            except OSError:
                return False  # a link, or a pipe
            with _CachedSource(self, name, fd) as source:
                return self._sound(source, note)

    def remove(self, name: str) -> bool:
        """Remove an entry unless it is being read; return whether it no longer exists."""
        try:
            with open_cache_dirs(self._root) as dirs:
                with dirs.locked(BUDGET), contextlib.suppress(OSError):
                    dirs.remove_unused(name)
                return dirs.root.stat(name) is None
        except OSError:
            return False

    def _discard(self, name: str, damaged: os.stat_result) -> bool:
        """Remove a damaged entry unless it was replaced; return whether it no longer exists."""
        try:
            with open_cache_dirs(self._root) as dirs, dirs.locked(BUDGET):
                status = dirs.root.stat(name)
                if status is not None and os.path.samestat(status, damaged):
                    dirs.remove(name)
                    return dirs.root.stat(name) is None
        except OSError:
            return False
        return True

    def clean(self) -> int:
        """Remove the remains of killed downloads and evict entries above `max_bytes`; return the bytes freed."""
        freed = 0
        with _IF_EXISTS, self._open_or_raise() as dirs:
            for part in dirs.parts.names():
                with (
                    contextlib.suppress(PermissionError),  # it belongs to another user
                    dirs.locked(part.rpartition(".")[0], wait=False) as owned,
                ):
                    freed += dirs.parts.remove(part) if owned else 0
            for name in dirs.locks.names():
                lock = FileLock(name, dirs.locks)
                with contextlib.suppress(PermissionError):
                    if name != BUDGET and lock.acquire(wait=False):
                        lock.remove()
            with dirs.locked(BUDGET):
                freed += self._evict(dirs, 0, dirs.remove_unused)[0]
                for name in dirs.notes.names():
                    if dirs.root.stat(name) is None:
                        freed += dirs.notes.remove(name)
        return freed

    @contextlib.contextmanager
    def _open_or_raise(self) -> Iterator[CacheDirs]:
        """Open the directories; raise `AccessDenied` if they cannot be opened."""
        try:
            with open_cache_dirs(self._root) as dirs:
                yield dirs
        except PermissionError as error:
            raise AccessDenied(f"{error.strerror or error}.", url=str(self._root)) from None

    def _cached(self, url: str, storage: StorageOptions, version: str | None = None) -> Source | None:
        """Open the entry of a URL if it exists, is intact and is current."""
        name = self.path_of(url).name
        try:
            with open_cache_dirs(self._root) as dirs, contextlib.ExitStack() as unless_used:
                note = dirs.read_note(name)
                if note is None:
                    return None
                source = _CachedSource(self, name, dirs.root.open(name), note.version)
                unless_used.callback(source.close)
                # The lock prevents eviction; if it comes too late, the open file can still be read.
                try_lock(source.fileno(), shared=True)
                matches = source.length == note.size and note.url == _key_of(url)
                if matches and self._intact(source, note) and self._current(note, url, storage, version):
                    dirs.root.set_time(name, dirs.stamp())
                    unless_used.pop_all()
                    return source
        except TarmacError:
            raise
        except OSError:
            pass
        return None

    def _intact(self, source: _CachedSource, note: Note) -> bool:
        """Return whether an entry is sound, or was when this process first opened it."""
        seen = source.name, source.status.st_ino, source.length or 0
        if seen not in self._checked:
            if not self._sound(source, note):
                return False
            self._checked.add(seen)
        return True

    def _sound(self, source: _CachedSource, note: Note) -> bool:
        """Return whether an entry has the downloaded bytes and is a shard; earlier versions cached any file."""
        try:
            self._check(source)
        except ArchiveError:
            return False
        return source.length == note.size and _digest_of(source) == note.digest

    def _check(self, source: _CachedSource) -> None:
        """Raise an ArchiveError if a file must not be cached; rewind it."""
        os.lseek(source.fileno(), 0, os.SEEK_SET)
        if self.check is not None:
            self.check(source)
            os.lseek(source.fileno(), 0, os.SEEK_SET)

    def _current(self, note: Note, url: str, storage: StorageOptions, version: str | None) -> bool:
        if version is not None:
            return note.version in (None, version)
        if not self.revalidate:
            return True
        current = schemes.stat(url, storage)
        return current.size == note.size if current.version is None else current.version == note.version

    def _warn_of_size(self) -> None:
        """Warn once that shards are not cached because others are in use."""
        if not self._was_full:
            self._was_full = True
            what = (
                f"{self._root}: the shards in use fill the cache, of {self.max_bytes} bytes, so others are read from "
                "their store. Try: a larger `max_bytes`, or fewer shards in use: a Loader with smaller `streams` or "
                "`window`, or fewer workers."
            )
            warnings.warn(what, CacheFull, stacklevel=4)

    def _is_too_large(self, size: int) -> bool:
        return self.max_bytes is not None and size > self.max_bytes

    def _fetch(
        self,
        url: str,
        storage: StorageOptions,
        version: str | None = None,
        room: Callable[[], int] = lambda: sys.maxsize,
    ) -> Source | None:
        """Download the entry unless another process just did.

        If it is known to exceed `max_bytes` or `room()`, return the remote source; if it turns out to, None. Raise
        `_NoRoom` if the entries in use leave no room for it.
        """
        name = self.path_of(url).name
        with open_cache_dirs(self._root, create=True) as dirs, dirs.locked(name):
            source = self._cached(url, storage, version)
            if source is not None:
                return source
            for stale in dirs.parts.names(name):
                dirs.parts.remove(stale)  # its download has died, since we hold the lock
            remote = schemes.open_read(url, storage)
            if self._is_too_large(remote.length or 0) or (remote.length or 0) > room():
                return remote
            part = part_name(name)
            with remote, contextlib.ExitStack() as unless_published:
                self._check_room(dirs, remote.length or 0)
                cached = _CachedSource(self, name, dirs.parts.create(part), remote.version)
                unless_published.callback(dirs.parts.remove, part)
                unless_published.callback(cached.close)
                note = self._download(remote, cached, url, room)
                if note is None:
                    return None
                self._publish(dirs, part, cached, note)
                unless_published.pop_all()
                return cached

    def _download(
        self, remote: Source, cached: _CachedSource, url: str, room: Callable[[], int]
    ) -> Note | None:
        """Download to a part file; return None if the shard exceeds `max_bytes` or `room()`."""
        import xxhash

        hasher, size, fd = xxhash.xxh3_64(), 0, cached.fileno()
        while chunk := remote.read(MIB):
            hasher.update(chunk)
            size += len(chunk)
            if self._is_too_large(size) or size > room():
                return None
            view = memoryview(chunk)
            while view:  # a call may write only some of the bytes
                view = view[os.write(fd, view) :]
        if os.fstat(fd).st_size != size:
            raise TransferError(f"the part file does not have the {size} bytes written to it.", url=url)
        try:
            self._check(cached)
        except ArchiveError as error:
            error.hint = "check the URL and the server, and read it again; the response was not cached."
            raise error.at(url=url) from None
        cached.length = size
        return Note(_key_of(url), size, hasher.hexdigest(), remote.version, display_url(url))

    def _publish(self, dirs: CacheDirs, part: str, cached: _CachedSource, note: Note) -> None:
        """Evict entries and rename the part file, which is open and locked against eviction."""
        name = cached.name
        try_lock(cached.fileno(), shared=True)
        with dirs.locked(BUDGET):
            dirs.root.remove(name)
            if not self._evict(dirs, note.size, dirs.remove_unused)[1]:
                raise _NoRoom
            # The note comes first: an entry without one would never be evicted.
            dirs.write_note(name, note)
            dirs.parts.move(part, dirs.root, name)
            status = dirs.root.stat(name)
            if status is None or not os.path.samestat(status, cached.status):
                dirs.remove(name)  # another process has replaced the part file
                return
            dirs.root.set_time(name, dirs.stamp())
        self._checked.add((name, cached.status.st_ino, note.size))

    def _check_room(self, dirs: CacheDirs, incoming: int) -> None:
        """Raise if `incoming` bytes have no room beside the entries in use."""
        with dirs.locked(BUDGET):
            if not self._evict(dirs, incoming, dirs.unused_bytes)[1]:
                raise _NoRoom

    def _evict(self, dirs: CacheDirs, incoming: int, remove: Callable[[str], int]) -> tuple[int, bool]:
        """Remove the least recently used entries to make room for `incoming` bytes.

        `remove` returns the bytes that this frees. Return them all, and whether they are enough.
        """
        if self.max_bytes is None:
            return 0, True
        entries = [(status.st_mtime_ns, status.st_size, name) for name, status in dirs.entries()]
        freed, excess = 0, sum(size for _, size, _ in entries) + incoming - self.max_bytes
        for _, _, name in sorted(entries):
            if freed >= excess:
                break
            with contextlib.suppress(OSError):
                freed += remove(name)
        return freed, freed >= excess


class _NoRoom(Exception):
    """The entries in use leave no room for another one."""


class _CachedSource(LocalSource):
    """An open entry of a cache."""

    def __init__(self, cache: Cache, name: str, fd: int, version: str | None = None) -> None:
        super().__init__(str(cache._root / name), fd)
        self.name, self.version, self.status = name, version, os.fstat(fd)
        self._cache = cache

    def blame(self, error: TarmacError) -> None:
        """Remove the damaged entry, so that it is downloaded again, and explain that in the hint."""
        damaged = isinstance(error, ArchiveError | IndexingError)
        if not damaged or isinstance(error, LimitExceeded | UnsupportedMember):
            return
        if self._cache._discard(self.name, self.status):
            error.hint = (
                f"read it again: the damaged copy {self.url} was removed from the cache. If the error "
                "persists, the shard is damaged in the store."
            )
        else:
            error.hint = f"remove the damaged copy {self.url} from the cache and read it again."


def as_cache(cache: Cache | str | os.PathLike[str] | None) -> Cache | None:
    """Return a cache, or the one in a directory."""
    return cache if cache is None or isinstance(cache, Cache) else Cache(cache)


def open_shard(
    url: str,
    storage: StorageOptions = DEFAULT_STORAGE,
    cache: Cache | None = None,
    version: str | None = None,
) -> Source:
    """Open a shard, through the cache if there is one."""
    return schemes.open_read(url, storage) if cache is None else cache.open_read(url, storage, version)


def _is_cacheable(url: str) -> bool:
    return url != "-" and not schemes.is_local(url)


def _key_of(url: str) -> str:
    """Return a hash of a URL for names and notes, which must not contain its secrets."""
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()


def _digest_of(source: LocalSource) -> str:
    import xxhash

    hasher = xxhash.xxh3_64()
    for start in range(0, source.length or 0, MIB):
        hasher.update(source.read_at(start, MIB))
    return str(hasher.hexdigest())
