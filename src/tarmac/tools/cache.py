"""Manage the cache of remote shards: fill, verify and evict it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tarmac import environment
from tarmac.display import display_url
from tarmac.errors import NotFound, TarmacError, UsageError, WriteError
from tarmac.progress import track
from tarmac.runtime.lookahead import in_threads
from tarmac.storage import Cache, StorageOptions
from tarmac.storage.cache import CacheEntry
from tarmac.storage.schemes import is_local
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards, expand


@dataclass(slots=True)
class WarmReport:
    """What happened to each shard."""

    fetched: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    """Shards that were cached already."""
    not_kept: list[str] = field(default_factory=list)
    """Shards that are local, or larger than the cache."""
    failed: dict[str, TarmacError] = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """Return a line for each shard that is not in the cache."""
        not_kept = (
            f"not cached: {display_url(url)} is {'local' if url == '-' or is_local(url) else 'larger than the cache'}"
            for url in self.not_kept
        )
        return [*not_kept, *(f"FAILED {error}" for error in self.failed.values())]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers and messages, for JSON."""
        counts = {name: len(getattr(self, name)) for name in ("fetched", "present", "not_kept", "failed")}
        return counts | {"errors": [str(error) for error in self.failed.values()]}

    def __str__(self) -> str:
        fetched, present, not_kept, failed, _ = self.to_dict().values()
        return f"{fetched} downloaded, {present} already cached, {not_kept} not cached, {failed} failed"


@dataclass(slots=True)
class VerifyReport:
    """Which entries are intact."""

    intact: list[CacheEntry] = field(default_factory=list)
    damaged: list[CacheEntry] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    """Names of damaged entries that were removed."""

    def __str__(self) -> str:
        return f"{len(self.intact)} intact, {len(self.damaged)} damaged"


@dataclass(slots=True)
class EvictReport:
    """What was removed."""

    removed: list[CacheEntry] = field(default_factory=list)
    in_use: list[CacheEntry] = field(default_factory=list)
    """Entries that could not be removed because they are being read."""
    absent: list[str] = field(default_factory=list)
    """Shards that were not cached."""
    left: int = 0
    """Bytes that remain."""

    @property
    def remarks(self) -> list[str]:
        """Return a line for each shard that could not be removed."""
        return [f"in use: {entry.url or entry.name}" for entry in self.in_use]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, for JSON."""
        freed = sum(entry.size for entry in self.removed)
        counts = {"removed": len(self.removed), "freed": freed, "left": self.left}
        return counts | {"in_use": len(self.in_use), "absent": len(self.absent)}

    def __str__(self) -> str:
        removed, freed, left, _, absent = self.to_dict().values()
        more = f", {absent} were not cached" if absent else ""
        return f"{removed} removed, {freed} bytes freed, {left} bytes left{more}"


def open_cache(cache: Cache | str | None = None, max_bytes: int | None = None) -> Cache:
    """Open the cache of a directory; by default the one that the environment names."""
    if isinstance(cache, Cache):
        return cache if max_bytes is None else Cache(cache.directory, max_bytes)
    directory = cache or environment.cache_dir()
    if not directory:
        raise UsageError("there is no cache directory.", hint="`cache`, or set WDS_CACHE.")
    size = environment.cache_size()
    return Cache(directory, max_bytes if max_bytes is not None else size if size > 0 else None)


def warm(
    cache: Cache | str | None,
    shards: Shards,
    *,
    max_bytes: int | None = None,
    threads: int = 8,
    storage: StorageOptions = DEFAULT_STORAGE,
    progress: bool | None = None,
    allow_exec: bool = True,
) -> WarmReport:
    """Download shards that are not cached, several at a time; a failure does not stop the others."""
    opened = open_cache(cache, max_bytes)
    urls = list(dict.fromkeys(expand(shards, storage=storage, allow_exec=allow_exec)))
    report = WarmReport()

    def one(url: str) -> bool | TarmacError | None:
        try:
            return opened.warm(url, storage)
        except TarmacError as error:
            return error.at(url=url)
        except OSError as error:
            reason = error.strerror or str(error)
            return WriteError(f"the cache directory is unusable: {reason}.", url=str(opened.directory))

    results = track(in_threads(one, urls, max(threads, 1)), len(urls), "warming", progress=progress)
    for url, result in zip(urls, results, strict=True):
        if isinstance(result, TarmacError):
            report.failed[url] = result
        else:
            {True: report.present, False: report.fetched, None: report.not_kept}[result].append(url)
    return report


def verify(
    cache: Cache | str | None = None, *, keep: bool = False, progress: bool | None = None
) -> VerifyReport:
    """Compare the size and digest of every entry; damaged ones are removed, or with `keep` only reported."""
    report, opened = VerifyReport(), open_cache(cache)
    entries = opened.entries()
    for entry in track(entries, len(entries), "verifying", progress=progress):
        try:
            intact = opened.is_sound(entry.name)
        except NotFound:
            continue  # another process evicted it meanwhile
        (report.intact if intact else report.damaged).append(entry)
        if not intact and not keep and opened.remove(entry.name):
            report.removed.append(entry.name)
    return report


def evict(
    cache: Cache | str | None = None,
    shards: Iterable[str] = (),
    *,
    max_bytes: int | None = None,
    everything: bool = False,
) -> EvictReport:
    """Remove some shards, everything, or the least recently used ones until the rest fits the cache.

    Entries that are being read are kept.
    """
    report, urls, cache = EvictReport(), list(shards), open_cache(cache, max_bytes)
    previous = cache.entries()
    if urls:
        entries = {url: cache.entry_of(url) for url in expand(urls, allow_exec=False)}
        report.absent = [url for url, entry in entries.items() if entry is None]
        _remove(cache, [entry for entry in entries.values() if entry is not None], report)
    elif everything:
        _remove(cache, previous, report)
        cache.clean()
    elif cache.max_bytes is not None:
        cache.clean()
        names = {entry.name for entry in cache.entries()}
        report.removed = [entry for entry in previous if entry.name not in names]
    else:
        raise UsageError("nothing to evict.", hint="pass shards, `everything`, or `max_bytes`.")
    report.left = sum(entry.size for entry in cache.entries())
    return report


def _remove(cache: Cache, entries: list[CacheEntry], report: EvictReport) -> None:
    for entry in entries:
        (report.removed if cache.remove(entry.name) else report.in_use).append(entry)
