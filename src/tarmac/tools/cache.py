"""Manage the cache of remote shards: fill, verify and evict it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tarmac.errors import NotFound, TarmacError, UsageError, WriteError
from tarmac.progress import track
from tarmac.runtime.lookahead import in_threads
from tarmac.storage import Cache, StorageOptions
from tarmac.storage.cache import CacheEntry
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


@dataclass(slots=True)
class VerifyReport:
    """Which entries are intact."""

    intact: list[CacheEntry] = field(default_factory=list)
    damaged: list[CacheEntry] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    """Names of damaged entries that were removed."""


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


def warm(
    cache: Cache,
    shards: Shards,
    *,
    threads: int = 8,
    storage: StorageOptions = DEFAULT_STORAGE,
    progress: bool | None = None,
    allow_exec: bool = True,
) -> WarmReport:
    """Download shards that are not cached, several at a time; a failure does not stop the others."""
    urls = list(dict.fromkeys(expand(shards, storage=storage, allow_exec=allow_exec)))
    report = WarmReport()

    def one(url: str) -> bool | TarmacError | None:
        try:
            return cache.warm(url, storage)
        except TarmacError as error:
            return error.at(url=url)
        except OSError as error:
            reason = error.strerror or str(error)
            return WriteError(f"the cache directory is unusable: {reason}.", url=str(cache.directory))

    results = track(in_threads(one, urls, max(threads, 1)), len(urls), "warming", progress=progress)
    for url, result in zip(urls, results, strict=True):
        if isinstance(result, TarmacError):
            report.failed[url] = result
        else:
            {True: report.present, False: report.fetched, None: report.not_kept}[result].append(url)
    return report


def verify(cache: Cache, *, keep: bool = False, progress: bool | None = None) -> VerifyReport:
    """Compare the size and digest of every entry; damaged ones are removed, or with `keep` only reported."""
    report, entries = VerifyReport(), cache.entries()
    for entry in track(entries, len(entries), "verifying", progress=progress):
        try:
            intact = cache.is_sound(entry.name)
        except NotFound:
            continue  # another process evicted it meanwhile
        (report.intact if intact else report.damaged).append(entry)
        if not intact and not keep and cache.remove(entry.name):
            report.removed.append(entry.name)
    return report


def evict(cache: Cache, shards: Iterable[str] = (), *, everything: bool = False) -> EvictReport:
    """Remove some shards, everything, or the least recently used ones until the rest fits the cache.

    Entries that are being read are kept.
    """
    report, urls = EvictReport(), list(shards)
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
        raise UsageError("nothing to evict.", hint="shards, `max_bytes` of the cache, or `everything`.")
    report.left = sum(entry.size for entry in cache.entries())
    return report


def _remove(cache: Cache, entries: list[CacheEntry], report: EvictReport) -> None:
    for entry in entries:
        (report.removed if cache.remove(entry.name) else report.in_use).append(entry)
