"""The directory that remote shards are kept in: fill it, look at it, check it, make room in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tarmac.errors import NotFound, TarmacError, UrlError, WriteError
from tarmac.progress import progress
from tarmac.runtime.lookahead import in_threads
from tarmac.storage import Cache, StorageOptions
from tarmac.storage.cache import CacheEntry
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import Shards, expand

__all__ = ["evict", "EvictReport", "verify", "VerifyReport", "warm", "WarmReport"]


@dataclass(slots=True)
class WarmReport:
    """What became of each shard that was to be kept."""

    fetched: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    """Those that were there already, whole."""
    not_kept: list[str] = field(default_factory=list)
    """Those that are local, or larger than the cache."""
    failed: dict[str, TarmacError] = field(default_factory=dict)


@dataclass(slots=True)
class VerifyReport:
    """Which entries are as they were downloaded."""

    sound: list[CacheEntry] = field(default_factory=list)
    damaged: list[CacheEntry] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    """The names of the damaged ones that are gone."""


@dataclass(slots=True)
class EvictReport:
    """What was removed and what is left."""

    removed: list[CacheEntry] = field(default_factory=list)
    in_use: list[CacheEntry] = field(default_factory=list)
    """Entries that were to go and are being read."""
    absent: list[str] = field(default_factory=list)
    """Shards that were to go and were not there."""
    left: int = 0
    """Bytes that are kept now."""


def warm(
    cache: Cache,
    shards: Shards,
    *,
    threads: int = 8,
    storage: StorageOptions = DEFAULT_STORAGE,
    show: bool | None = None,
) -> WarmReport:
    """Download the shards that are not there yet, several at a time; one that fails stops no other."""
    urls = list(dict.fromkeys(expand(shards, options=storage)))
    report = WarmReport()

    def one(url: str) -> bool | TarmacError | None:
        try:
            return cache.warm(url, storage)
        except TarmacError as error:
            return error.at(url=url)
        except OSError as error:
            reason = error.strerror or str(error)
            return WriteError(f"the cache directory cannot be used: {reason}.", url=str(cache.directory))

    results = progress(in_threads(one, urls, max(threads, 1)), len(urls), "warming", show=show)
    for url, result in zip(urls, results, strict=True):
        if isinstance(result, TarmacError):
            report.failed[url] = result
        else:
            {True: report.there, False: report.fetched, None: report.not_kept}[result].append(url)
    return report


def verify(cache: Cache, *, keep: bool = False, show: bool | None = None) -> VerifyReport:
    """Compare the size and the digest of every entry; damaged ones are removed, or with `keep` only told."""
    report, entries = VerifyReport(), cache.entries()
    for entry in progress(entries, len(entries), "verifying", show=show):
        try:
            sound = cache.is_sound(entry.name)
        except NotFound:
            continue  # another process has made room meanwhile
        (report.sound if sound else report.damaged).append(entry)
        if not sound and not keep and cache.remove(entry.name):
            report.removed.append(entry.name)
    return report


def evict(cache: Cache, shards: Iterable[str] = (), *, everything: bool = False) -> EvictReport:
    """Remove some shards, everything, or what was unused for longest until the rest fits the cache.

    What someone is reading stays.
    """
    report, urls = EvictReport(), list(shards)
    before = cache.entries()
    if urls:
        found = {url: cache.entry_of(url) for url in expand(urls)}
        report.absent = [url for url, entry in found.items() if entry is None]
        _remove(cache, [entry for entry in found.values() if entry is not None], report)
    elif everything:
        _remove(cache, before, report)
        cache.clean()
    elif cache.max_bytes is not None:
        cache.clean()
        names = {entry.name for entry in cache.entries()}
        report.removed = [entry for entry in before if entry.name not in names]
    else:
        raise UrlError("nothing was said to go.", hint="--max-bytes N, --all, or the shards.")
    report.left = sum(entry.size for entry in cache.entries())
    return report


def _remove(cache: Cache, entries: list[CacheEntry], report: EvictReport) -> None:
    for entry in entries:
        (report.removed if cache.remove(entry.name) else report.in_use).append(entry)
