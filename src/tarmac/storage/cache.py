"""A directory of downloaded shards, shared safely by any number of processes.

An entry's name is a hash of the whole URL plus a readable tail, so different URLs never meet. A
download goes to a part file and gets its name only when it is whole; a note beside it holds size and
digest, which each process compares the first time it opens the entry. One lock per name keeps two
processes from downloading the same shard; readers hold a shared lock on the entry itself, which tells
evictors to leave it. The system releases the locks of killed processes.

    DIRECTORY/<hash>-train-000000.tar   entries, and whatever else the user keeps here, untouched
    DIRECTORY/.tarmac/notes, parts, locks
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tarmac.errors import CacheDisabled, TarmacError, TransferError
from tarmac.limits import MIB
from tarmac.showing import shown_url
from tarmac.storage import schemes
from tarmac.storage.local import LocalSource
from tarmac.storage.locks import FileLock, try_lock
from tarmac.storage.types import DEFAULT_STORAGE, Source, StorageOptions

__all__ = ["Cache", "CacheEntry"]

_NOT_CACHED = frozenset(("", "file", "-"))
_BUDGET = "budget"  # the lock that whoever adds or removes entries holds for a moment


@dataclass(frozen=True, slots=True)
class _Note:
    """What is written beside an entry, to check it against."""

    url: str
    size: int
    digest: str
    version: str | None
    shown: str = ""
    """The URL for people, without what may be secret in it."""


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
        last = "" if url.startswith("pipe:") else shown_url(url).partition("?")[0].rpartition("/")[2]
        last = last if self.readable is None else self.readable(url)
        tail = re.sub(r"[^A-Za-z0-9._-]+", "_", last)[-80:]
        return self._root / f"{_key(url)[:32]}-{tail}"

    def open_read(self, url: str, options: StorageOptions = DEFAULT_STORAGE) -> Source:
        """Open a shard from the cache, downloading it first if need be. Local files are opened directly."""
        if schemes.scheme_of(url) in _NOT_CACHED:
            return schemes.open_read(url, options)
        entry = self.path_of(url)
        source = self._cached(entry, url, options)
        if source is None and not self._disabled:
            try:
                source = self._fetch(entry, url, options)
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
        with contextlib.suppress(OSError):
            os.utime(self.path_of(url), (0, 0))

    def warm(self, url: str, options: StorageOptions = DEFAULT_STORAGE) -> bool | None:
        """Download a shard unless it is there and whole; say whether it was, or None if it cannot be kept."""
        if schemes.scheme_of(url) in _NOT_CACHED:
            return None
        entry = self.path_of(url)
        source = self._cached(entry, url, options)
        there = source is not None
        if source is None:
            source = self._fetch(entry, url, options)
        if source is None:
            return None
        source.close()
        return there if isinstance(source, LocalSource) else None

    def entries(self) -> list[CacheEntry]:
        """What is kept, that which was unused for longest first."""
        found = []
        for place in _files(self._place("notes")):
            with contextlib.suppress(OSError):
                file, note = (self._root / place.name).stat(), _read_note(place)
                shown = "" if note is None else note.shown
                found.append(CacheEntry(place.name, shown, file.st_size, file.st_mtime))
        return sorted(found, key=lambda entry: (entry.used, entry.name))

    def entry_of(self, url: str) -> CacheEntry | None:
        """The entry of a URL, whatever the readable part of its name is."""
        prefix = f"{_key(url)[:32]}-"
        return next((entry for entry in self.entries() if entry.name.startswith(prefix)), None)

    def is_sound(self, name: str) -> bool:
        """Whether an entry still has the size and the digest that it was downloaded with."""
        note = _read_note(self._place("notes") / name)
        if note is None:
            return False
        with LocalSource(str(self._root / name)) as source:
            return source.length == note.size and _digest_of(source) == note.digest

    def remove(self, name: str) -> bool:
        """Remove an entry, unless someone is reading it; say whether it is gone."""
        if not self._place("locks").is_dir():
            return False
        with self._locked(_BUDGET), contextlib.suppress(OSError):
            _remove_unused(self._root / name, self._place("notes") / name)
        return not (self._root / name).exists()

    def clean(self) -> int:
        """Remove what killed downloads left behind and shrink to the budget; return the bytes freed."""
        freed = 0
        for part in _files(self._place("parts")):
            with self._locked(part.name.rpartition(".")[0], wait=False) as owned:
                if owned:
                    freed += _remove(part)
        for lock in _files(self._place("locks")):
            held = FileLock(lock)
            if lock.name != _BUDGET and held.own(wait=False):
                held.remove()
        if self._place("locks").is_dir():
            with self._locked(_BUDGET):
                freed += self._evict(0)
                for note in _files(self._place("notes")):
                    if not (self._root / note.name).exists():
                        freed += _remove(note)
        return freed

    def _place(self, what: str) -> Path:
        return self._root / ".tarmac" / what

    def _new_part(self, entry: Path) -> Path:
        """Choose a name for a part file, from which its entry can be told."""
        return self._place("parts") / f"{entry.name}.{uuid.uuid4().hex[:16]}"

    @contextlib.contextmanager
    def _locked(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        lock = FileLock(self._place("locks") / name)
        try:
            yield lock.own(wait=wait)
        finally:
            lock.release()

    def _cached(self, entry: Path, url: str, options: StorageOptions) -> Source | None:
        """Open the entry if it is there and is what it should be."""
        try:
            note = _read_note(self._place("notes") / entry.name)
            source = LocalSource(str(entry))
        except OSError:
            return None
        if note is None:
            source.close()
            return None
        try:
            # From here on evictors pass by; if one came first, the open file is still ours to read.
            try_lock(source.fileno(), shared=True)
            alike = source.length == note.size and note.url == _key(url)
            if alike and self._intact(source, entry, note) and self._current(note, url, options):
                with contextlib.suppress(OSError):
                    os.utime(entry)  # when it was last used
                return source
        except BaseException:
            source.close()
            raise
        source.close()
        return None

    def _intact(self, source: LocalSource, entry: Path, note: _Note) -> bool:
        found = os.fstat(source.fileno())
        seen = (entry.name, found.st_ino, found.st_size)
        if seen not in self._checked:
            if _digest_of(source) != note.digest:
                return False
            self._checked.add(seen)
        return True

    def _current(self, note: _Note, url: str, options: StorageOptions) -> bool:
        if not self.revalidate:
            return True
        now = schemes.stat(url, options)
        return now.size == note.size if now.version is None else now.version == note.version

    def _fetch(self, entry: Path, url: str, options: StorageOptions) -> Source | None:
        """Download the entry unless another process just did; None if it is larger than the budget."""
        for what in ("notes", "parts", "locks"):
            self._place(what).mkdir(parents=True, exist_ok=True)
        with self._locked(entry.name):
            source = self._cached(entry, url, options)
            if source is not None:
                return source
            for stale in _files(self._place("parts"), entry.name):
                _remove(stale)  # whoever began these is gone: the lock is ours
            remote = schemes.open_read(url, options)
            if self.max_bytes is not None and (remote.length or 0) > self.max_bytes:
                return remote
            part = self._new_part(entry)
            try:
                with remote:
                    note = self._download(remote, part, url)
                if note is None:
                    return None
                return self._publish(part, entry, note)
            finally:
                _remove(part)

    def _download(self, remote: Source, part: Path, url: str) -> _Note | None:
        import xxhash

        hasher, size = xxhash.xxh3_64(), 0
        with part.open("wb", buffering=0) as file:
            while chunk := remote.read(MIB):
                hasher.update(chunk)
                size += len(chunk)
                if self.max_bytes is not None and size > self.max_bytes:
                    return None
                view = memoryview(chunk)
                while view:
                    view = view[file.write(view) :]
            if os.fstat(file.fileno()).st_size != size:
                raise TransferError(f"the part file does not hold the {size} bytes written to it.", url=url)
        return _Note(_key(url), size, hasher.hexdigest(), remote.version, shown_url(url))

    def _publish(self, part: Path, entry: Path, note: _Note) -> Source:
        """Make room, give the part its name, and open it before anyone can evict it."""
        with self._locked(_BUDGET):
            _remove(entry)
            self._evict(note.size)
            # The note comes first: an entry without one would be nobody's to evict.
            draft = self._new_part(entry)
            try:
                draft.write_text(json.dumps(asdict(note)))
                draft.replace(self._place("notes") / entry.name)
            finally:
                _remove(draft)
            part.replace(entry)
            source = LocalSource(str(entry))
            try_lock(source.fileno(), shared=True)
        self._checked.add((entry.name, os.fstat(source.fileno()).st_ino, note.size))
        return source

    def _evict(self, incoming: int) -> int:
        """Make room for `incoming` bytes by removing the entries unused for longest; return what that freed.

        Only files that have a note are ours to remove.
        """
        if self.max_bytes is None:
            return 0
        entries = []
        for note in _files(self._place("notes")):
            with contextlib.suppress(OSError):
                found = (self._root / note.name).stat()
                entries.append((found.st_mtime_ns, found.st_size, note))
        freed, excess = 0, sum(size for _, size, _ in entries) + incoming - self.max_bytes
        for _, _, note in sorted(entries):
            if freed >= excess:
                break
            with contextlib.suppress(OSError):
                freed += _remove_unused(self._root / note.name, note)
        return freed


def _read_note(place: Path) -> _Note | None:
    """What is written beside an entry; None if that cannot be understood."""
    try:
        return _Note(**json.loads(place.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _key(url: str) -> str:
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()


def _files(directory: Path, prefix: str = "") -> list[Path]:
    try:
        return [path for path in directory.iterdir() if path.name.startswith(prefix)]
    except OSError:
        return []


def _remove(path: Path) -> int:
    """Remove a file if it is there and can be removed; return the bytes it had."""
    with contextlib.suppress(OSError):
        size = path.stat().st_size
        path.unlink()
        return size
    return 0


def _remove_unused(entry: Path, note: Path) -> int:
    """Remove an entry that no one reads."""
    fd = os.open(entry, os.O_RDWR | os.O_CLOEXEC)
    try:
        if not try_lock(fd):
            return 0
        freed = _remove(entry)
        _remove(note)
        return freed
    finally:
        os.close(fd)


def _digest_of(source: LocalSource) -> str:
    import xxhash

    hasher, position = xxhash.xxh3_64(), 0
    while chunk := source.read_at(position, MIB):
        hasher.update(chunk)
        position += len(chunk)
    return str(hasher.hexdigest())
