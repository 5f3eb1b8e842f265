"""Shards with known numbers of samples as one sequence: the dataset of the wids library, on tarmac's engine.

No index has to exist. A shard is fetched whole when a sample of it is first asked for, kept on disk, and its
headers are read then; `Dataset` does better where `tarmac index` was run.
"""

from __future__ import annotations

import base64
import bisect
import hashlib
import logging
import operator
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO, Any, Self
from urllib.parse import quote

import numpy as np

from tarmac import environment
from tarmac.compat.fieldfiles import interpret_transformations
from tarmac.compat.filecache import url_to_cache_name
from tarmac.compat.indexedtar import IndexedTarSamples
from tarmac.compat.lru import LRUCache
from tarmac.compat.shardlist_spec import check_shards, load_dsdesc_and_resolve, urldir, urlmerge
from tarmac.storage import Cache, Source, is_local, open_read, scheme_of
from tarmac.storage.local import local_path

__all__ = ["CacheLocalname", "DefaultLocalname", "LRUShards", "ShardListDataset", "hash_dataset_name"]

_log = logging.getLogger("tarmac")

MANY_OPEN = 200
"""Open shards beyond which a process may run out of file descriptors."""


class _InDirectory:
    """Where shards are kept: in one directory. The cache adds to each name what keeps entries apart."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = os.fspath(directory)

    def __call__(self, shard: str) -> str:
        raise NotImplementedError


class CacheLocalname(_InDirectory):
    """Shards in a directory that the caller chose, under the last part of their URLs."""

    def __call__(self, shard: str) -> str:
        return os.path.join(self.directory, url_to_cache_name(shard))


class DefaultLocalname(_InDirectory):
    """Shards in one directory for all datasets, under their whole URLs: `WIDS_CACHE`, or one of our own."""

    def __init__(self, dldir: str | os.PathLike[str] | None = None) -> None:
        super().__init__(dldir or _default_directory())

    def __call__(self, shard: str) -> str:
        return os.path.join(self.directory, quote(shard, safe="+-"))


def _default_directory() -> str:
    return environment.wids_cache() or str(environment.cache_home() / "wids")


class LRUShards:
    """The `lru_size` shards used last, open; remote ones are downloaded to where `localname(url)` says.

    A file that is there under the very name that a function of the caller returns is used as it is; every
    download goes through a `Cache`. Downloads stay within `cache_size` bytes, the least recently used go
    first; with `keep` they all stay.
    """

    def __init__(
        self,
        lru_size: int,
        keep: bool = False,
        localname: Callable[[str], str] | None = None,
        *,
        cache_size: int | None = None,
    ) -> None:
        self.localname = DefaultLocalname() if localname is None else localname
        self.lru = LRUCache(lru_size, release_handler=self.release_handler)
        self._max_bytes = int(cache_size) if cache_size and cache_size > 0 and not keep else None
        self._caches: dict[str, Cache] = {}
        self._lock = threading.Lock()
        self.last_missed = False
        self.reset_stats()

    def reset_stats(self) -> None:
        """Count from zero again."""
        self.accesses = self.misses = 0

    def __len__(self) -> int:
        return len(self.lru)

    def release_handler(self, key: str, value: IndexedTarSamples) -> None:
        """Let go of a shard; the file is closed when no thread reads from it any more."""

    def clear(self) -> None:
        """Let go of all shards."""
        with self._lock:
            self.lru.clear()

    def get_shard(self, url: str, expected_size: int | None = None) -> IndexedTarSamples:
        """Return a shard, opened now or before; `expected_size` is how many samples it must have."""
        with self._lock:
            self.accesses += 1
            found: IndexedTarSamples | None = self.lru[url]
            self.last_missed = found is None
            if found is None:
                self.misses += 1
                source, path = self._opened(url)
                found = self.lru[url] = IndexedTarSamples(
                    path=path, stream=source, expected_size=expected_size
                )
            return found

    def _opened(self, url: str) -> tuple[Source, str]:
        if is_local(url):
            return open_read(url), local_path(url)
        if isinstance(self.localname, _InDirectory):
            cache = self._cache(self.localname.directory, None)
        else:
            local = self.localname(url)
            if os.path.isfile(local):
                return open_read(local), local
            cache = self._cache(os.path.dirname(local), partial(_last_part, self.localname))
        url = _printing(url)
        return cache.open_read(url), str(cache.path_of(url))

    def _cache(self, directory: str, readable: Callable[[str], str] | None) -> Cache:
        if directory not in self._caches:  # one for all: it remembers which entries it has checked
            self._caches[directory] = Cache(directory or ".", max_bytes=self._max_bytes, readable=readable)
        return self._caches[directory]

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in self.__dict__.items() if name not in ("lru", "_lock")}
        return kept | {"capacity": self.lru.capacity, "_caches": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.lru = LRUCache(state.pop("capacity"), release_handler=self.release_handler)
        self._lock = threading.Lock()
        self.__dict__.update(state)


class ShardListDataset:
    """The samples of a list of shards, as a sequence: `dataset[i]` is a dictionary.

    `shards` is a list of `{"url": …, "nsamples": …}`, or the path, URL or open file of a list in JSON
    (`wids-shard-index-v1`; `tarmac index` and `widsindex` make one). Keys of samples are extensions with
    their dot; values are open files until `transformations` are done: functions, "PIL", "numpy", or None.

    Remote shards are downloaded to `cache_dir`, or to where `localname(url)` says, and take up `cache_size`
    bytes at most unless `keep` is set. `lru_size` shards are kept open. Relative names are looked up in
    `base`, `options` replaces values of the JSON.
    """

    def __init__(
        self,
        shards: list[dict[str, Any]] | str | os.PathLike[str] | IO[Any],
        *,
        cache_size: int = 10**12,
        cache_dir: str | os.PathLike[str] | None = None,
        lru_size: int = 10,
        dataset_name: str | None = None,
        localname: Callable[[str], str] | None = None,
        transformations: Any = "PIL",
        keep: bool = False,
        base: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.spec, self.base = _spec(shards, base, options)
        self.shards: list[dict[str, Any]] = self.spec["shardlist"]
        described = shards if isinstance(shards, str | os.PathLike) else self.shards
        self.dataset_name = dataset_name or self.spec.get("name") or hash_dataset_name(str(described))
        self.lengths = [shard["nsamples"] for shard in self.shards]
        self.cum_lengths = np.cumsum(self.lengths, dtype=np.int64)
        self._ends: list[int] = self.cum_lengths.tolist()
        self.total_length = self._ends[-1] if self._ends else 0
        if cache_dir is not None:
            localname = CacheLocalname(cache_dir)
        self.localname = DefaultLocalname() if localname is None else localname
        self.cache_dir = self.localname.directory if isinstance(self.localname, _InDirectory) else None
        self.transformations = interpret_transformations(transformations)
        if lru_size > MANY_OPEN:
            _log.warning("lru_size=%d open shards may be more than the system allows", lru_size)
        keep = keep or bool(self.spec.get("keep"))
        self.cache = LRUShards(lru_size, keep, self.localname, cache_size=cache_size)
        self._warned = False

    def add_transform(self, transform: Callable[[Any], Any]) -> Self:
        """Add a function that is called with each sample, after those there are."""
        self.transformations.append(transform)
        return self

    def __len__(self) -> int:
        return self.total_length

    def get_stats(self) -> tuple[int, int]:
        """How many times a shard was needed, and how many times it was not open."""
        return self.cache.accesses, self.cache.misses

    def check_cache_misses(self) -> None:
        """Say once, in the log, that samples are asked for in an order that opens too many shards."""
        accesses, misses = self.get_stats()
        if not self._warned and accesses > 100 and misses / accesses > 0.3:
            self._warned = True
            _log.warning(
                "%.0f %% of samples needed a shard that was not open; use a sampler such as ChunkedSampler, "
                "or a larger lru_size",
                100 * misses / accesses,
            )

    def get_shard(self, index: int) -> tuple[IndexedTarSamples, int, dict[str, Any]]:
        """The shard that has a sample, the number of the sample in it, and what the list says of it."""
        number = self._checked(index)
        place = bisect.bisect_right(self._ends, number)
        described = self.shards[place]
        first = self._ends[place - 1] if place else 0
        shard = self.cache.get_shard(described["url"], described["nsamples"])
        return shard, number - first, described

    def __getitem__(self, index: int) -> Any:
        shard, inner, described = self.get_shard(index)
        sample: Any = shard[inner]
        self.check_cache_misses()
        sample["__dataset__"] = described.get("dataset")
        sample["__index__"] = self._checked(index)
        sample["__shard__"] = described["url"]
        sample["__shardindex__"] = inner
        for transform in self.transformations:
            sample = transform(sample)
        return sample

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(self.total_length))

    def _checked(self, index: int) -> int:
        number, length = operator.index(index), self.total_length
        if not -length <= number < length:
            raise IndexError(f"there are {length} samples, numbered from 0; asked for {number}")
        return number + length if number < 0 else number

    def close(self) -> None:
        """Let go of all open shards; they open again when needed."""
        self.cache.clear()

    def __repr__(self) -> str:
        return f"<ShardListDataset {self.dataset_name}: {len(self)} samples in {len(self.shards)} shards>"


def hash_dataset_name(input_string: str) -> str:
    """Make a short name of a description."""
    return base64.urlsafe_b64encode(hashlib.sha256(input_string.encode()).digest())[:16].decode()


def _spec(
    shards: Any, base: str | None, options: Mapping[str, Any] | None
) -> tuple[dict[str, Any], str | None]:
    """What is known of the dataset, with the shards under whole names, and the directory of those names."""
    if isinstance(shards, list | tuple):
        listed = [shard | {"url": urlmerge(base or "", shard["url"])} for shard in check_shards([*shards])]
        return {**(options or {}), "shardlist": listed}, base
    if not isinstance(shards, str | os.PathLike) and not hasattr(shards, "read"):
        raise TypeError(
            f"shards= is a list, or the path, URL or open file of one, not {type(shards).__name__}"
        )
    spec = load_dsdesc_and_resolve(shards, options=options, base=base)
    there = urldir(os.fspath(shards)) if isinstance(shards, str | os.PathLike) else ""
    return spec, base if base is not None else urlmerge(there, spec.get("base") or "") or there


def _last_part(localname: Callable[[str], str], url: str) -> str:
    return os.path.basename(localname(url))


def _printing(url: str) -> str:
    """A command that writes to a file `{local}`, as wids runs them, made one that prints."""
    if scheme_of(url) != "pipe" or "{local}" not in url:
        return url
    command = url.removeprefix("pipe:").replace("{local}", '"$tarmac_dir"/shard')
    quoted = shlex.quote(command)
    return (
        "pipe:tarmac_dir=$(mktemp -d) && export tarmac_dir && trap 'rm -rf \"$tarmac_dir\"' EXIT"
        f' && sh -c {quoted} >&2 && cat "$tarmac_dir"/shard'
    )
