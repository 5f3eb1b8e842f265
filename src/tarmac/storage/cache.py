"""A directory of downloaded shards, shared safely by any number of processes.

An entry's name is a hash of the whole URL plus a readable tail, so different URLs never meet. Readers
hold a shared lock on an entry, downloaders and evictors an exclusive one; the system releases locks
of killed processes. A download goes to a part file, is checked, and only then gets its name. Each
process checks length and digest of an entry the first time it opens it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import uuid
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tarmac.errors import CacheDisabled, TransferError
from tarmac.limits import MIB
from tarmac.storage import schemes
from tarmac.storage.local import LocalSource
from tarmac.storage.locks import FileLock
from tarmac.storage.types import DEFAULT_STORAGE, Source, StorageOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Cache"]

ATTEMPTS = 10
_NOT_CACHED = frozenset(("", "file", "-"))


@dataclass(frozen=True, slots=True)
class _Meta:
    """What is written beside an entry, to check it against."""

    url: str
    size: int
    digest: str
    version: str | None


@dataclass(slots=True)
class Cache:
    """Keep remote shards under `directory`, up to `max_bytes` in all.

    Least recently used entries go first; entries that are being read never do. With `revalidate` the
    store is asked on each use whether the object has changed.
    """

    directory: str | os.PathLike[str]
    max_bytes: int | None = None
    revalidate: bool = False
    _checked: set[tuple[str, int, int]] = field(default_factory=set, init=False, repr=False)
    _warned: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.max_bytes is not None and self.max_bytes < 1:
            raise ValueError(f"Cache.max_bytes must be positive, got {self.max_bytes}")

    @property
    def _root(self) -> Path:
        return Path(self.directory).expanduser()

    def open_read(self, url: str, options: StorageOptions = DEFAULT_STORAGE) -> Source:
        """Open a shard from the cache, downloading it first if need be. Local files are opened directly."""
        if schemes.scheme_of(url) in _NOT_CACHED:
            return schemes.open_read(url, options)
        try:
            return self._open(url, options)
        except OSError as error:
            if isinstance(error, TransferError) or error.errno is None:
                raise
            # The directory is full, read-only or gone: the data is still there to be streamed.
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"{self._root}: {error.strerror}; shards are streamed.", CacheDisabled, stacklevel=3
                )
            return schemes.open_read(url, options)

    def path_of(self, url: str) -> Path:
        """Return where the entry of a URL is or would be."""
        tail = re.sub(r"[^A-Za-z0-9._-]+", "_", url.partition("?")[0].rpartition("/")[2])[-80:]
        return self._root / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}-{tail}"

    def clean(self) -> int:
        """Remove what killed downloads left behind and shrink to the budget; return the bytes freed."""
        before = sum(path.stat().st_size for path in self._root.iterdir() if path.is_file())
        for part in self._root.glob("*.part-*"):
            with self._owned(part.name.partition(".part-")[0]) as owned:
                if owned:
                    part.unlink(missing_ok=True)
        self._evict(0)
        return before - sum(path.stat().st_size for path in self._root.iterdir() if path.is_file())

    def _open(self, url: str, options: StorageOptions) -> Source:
        entry = self.path_of(url)
        (self._root / "locks").mkdir(parents=True, exist_ok=True)
        lock = self._lock(entry.name)
        try:
            for _attempt in range(ATTEMPTS):
                # Between the locks someone may evict the entry again, hence the loop.
                lock.share()
                if self._valid(entry, url, options):
                    os.utime(entry)
                    return _CachedSource(entry, lock)
                lock.own()
                if not self._valid(entry, url, options):
                    streamed = self._download(entry, url, options)
                    if streamed is not None:
                        lock.release()
                        return streamed
            raise TransferError(
                f"the cache entry vanished {ATTEMPTS} times; the budget is too small.", url=url
            )
        except BaseException:
            lock.release()
            raise

    def _lock(self, name: str) -> FileLock:
        return FileLock(self._root / "locks" / name)

    @contextlib.contextmanager
    def _owned(self, name: str) -> Iterator[bool]:
        """Hold an entry exclusively if nobody uses it."""
        lock = self._lock(name)
        try:
            yield lock.try_own()
        finally:
            lock.release()

    def _valid(self, entry: Path, url: str, options: StorageOptions) -> bool:
        try:
            meta = _Meta(**json.loads(_meta_path(entry).read_text()))
            found = entry.stat()
        except (OSError, ValueError, TypeError):
            return False
        if meta.url != hashlib.sha256(url.encode()).hexdigest() or found.st_size != meta.size:
            return False
        if (
            self.revalidate
            and meta.version is not None
            and schemes.stat(url, options).version != meta.version
        ):
            return False
        seen = (entry.name, found.st_ino, found.st_size)
        if seen not in self._checked:
            if _digest_of(entry) != meta.digest:
                return False
            self._checked.add(seen)
        return True

    def _download(self, entry: Path, url: str, options: StorageOptions) -> Source | None:
        """Fetch into a part file, check, and rename. Returns a plain stream if the shard is over budget."""
        import xxhash

        for stale in (*self._root.glob(f"{entry.name}.part-*"), entry, _meta_path(entry)):
            stale.unlink(missing_ok=True)  # we own the entry: whoever wrote these is gone
        version = schemes.stat(url, options).version if self.revalidate else None
        source = schemes.open_read(url, options)
        if self.max_bytes is not None and (source.length or 0) > self.max_bytes:
            return source
        part = entry.with_name(f"{entry.name}.part-{uuid.uuid4().hex[:12]}")
        hasher = xxhash.xxh3_64()
        size = 0
        try:
            with source, part.open("wb", buffering=0) as file:
                while chunk := source.read(MIB):
                    hasher.update(chunk)
                    size += len(chunk)
                    view = memoryview(chunk)
                    while view:
                        view = view[file.write(view) :]
            meta = _Meta(hashlib.sha256(url.encode()).hexdigest(), size, hasher.hexdigest(), version)
            if part.stat().st_size != size:
                raise TransferError(f"the cache holds {part.stat().st_size} bytes of {size}.", url=url)
            self._evict(size)
            part.replace(entry)
            _write_meta(entry, meta)
            found = entry.stat()
            self._checked.add((entry.name, found.st_ino, found.st_size))
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return None

    def _evict(self, incoming: int) -> None:
        """Make room for `incoming` bytes by removing the entries unused for longest."""
        if self.max_bytes is None:
            return
        entries = []
        for path in self._root.iterdir():
            if path.is_file() and path.suffix != ".json" and ".part-" not in path.name:
                with contextlib.suppress(OSError):
                    found = path.stat()
                    entries.append((found.st_mtime_ns, found.st_size, path))
        excess = sum(size for _, size, _ in entries) + incoming - self.max_bytes
        for _, size, path in sorted(entries):
            if excess <= 0:
                return
            with self._owned(path.name) as owned, contextlib.suppress(OSError):
                if owned:
                    path.unlink()
                    _meta_path(path).unlink(missing_ok=True)
                    excess -= size


class _CachedSource(LocalSource):
    """A cached file, with the lock that keeps it in the cache while it is read."""

    def __init__(self, entry: Path, lock: FileLock) -> None:
        super().__init__(str(entry))
        self._lock = lock

    def close(self) -> None:
        super().close()
        self._lock.release()


def _meta_path(entry: Path) -> Path:
    return entry.with_name(f"{entry.name}.json")


def _write_meta(entry: Path, meta: _Meta) -> None:
    path = _meta_path(entry)
    part = path.with_name(f"{path.name}.part-{uuid.uuid4().hex[:12]}")
    part.write_text(json.dumps(asdict(meta)))
    part.replace(path)


def _digest_of(path: Path) -> str:
    import xxhash

    hasher = xxhash.xxh3_64()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(MIB):
            hasher.update(chunk)
    return hasher.hexdigest()
