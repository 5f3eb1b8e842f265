"""`wids.wids`: the samples of tar files, and of lists of them, by number.

A `tarmac.Dataset` reads shards through index files. The shards of a wids list need none: each is downloaded whole when
one of its samples is first read, and indexed in memory. `tarmac index` makes a dataset faster to open.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import logging
import operator
import os
import shlex
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import IO, Any, Self
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from tarmac import environment
from tarmac.compat.webdataset.cache import download, url_to_cache_name
from tarmac.compat.wids.samplers import *  # noqa: F403 - names of this module, too
from tarmac.compat.wids.wids_decode import interpret_transformations as interpret_transformations
from tarmac.compat.wids.wids_dl import download_and_open
from tarmac.compat.wids.wids_specs import check_shards, load_dsdesc_and_resolve, urldir, urlmerge
from tarmac.errors import ArchiveError, BadManifest, DigestMismatch, TarmacError
from tarmac.exact.fetch import Fetcher
from tarmac.exact.indexed import IndexedShard
from tarmac.exact.selection import whole
from tarmac.exact.shardset import InMemory, OpenOptions, ShardSet
from tarmac.indexing.build import IndexOptions, index_in_memory
from tarmac.indexing.manifest import Manifest, Shard
from tarmac.samples.grouping import Sample
from tarmac.samples.naming import first_dot
from tarmac.storage import Cache, Source, is_local, open_read, scheme_of
from tarmac.storage.cache import check_shard
from tarmac.storage.local import LocalSource
from tarmac.tar import TarOptions

_log = logging.getLogger("tarmac")

Localname = Callable[[str], str]
MANY_OPEN_SHARDS = 200
"""Open shards beyond which a process may run out of file descriptors."""
_INDEXING = IndexOptions(lower=False, tar=TarOptions(repeated="keep"))


def _indexed(
    source: Source, url: str, *, md5sum: str | None = None, samples: int | None = None
) -> IndexedShard:
    """Index an open shard, which must have this MD5 sum and number of samples, if given. Damage raises.

    The shard owns the source, which is closed if this fails.
    """
    try:
        data = source.map() or source.content()
        if data is None:  # a stream, or empty
            with source:
                source = InMemory(source)
            data = source.content() or b""
        if md5sum is not None and (actual := hashlib.md5(data).hexdigest()) != md5sum:  # noqa: S324
            raise DigestMismatch(
                f"expected the MD5 sum {md5sum}, got {actual}.",
                url=url,
                hint="download or write the shard again.",
            )
        shard = IndexedShard(url, index_in_memory(source, url, _INDEXING), source)
        if samples not in (None, len(shard)):
            raise BadManifest(
                f"the list of shards says {samples} samples, the shard has {len(shard)}.",
                url=url,
                hint="update the list: tarmac index SHARDS -o FILE.json",
            )
    except BaseException as error:
        if isinstance(error, TarmacError):
            source.blame(error)
        source.close()
        raise
    return shard


class IndexedTarSamples:
    """The samples of a local tar file as a sequence of dictionaries.

    The keys are the extensions with their dot, with open files (`io.BytesIO`) as values, and `__key__`. The file is
    `path`, or the open file `stream`. A different `md5sum`, or a number of samples other than `expected_size`, is
    an error. `use_mmap` and `index_file` are accepted for compatibility and have no effect.
    """

    def __init__(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        stream: IO[bytes] | Source | None = None,
        md5sum: str | None = None,
        expected_size: int | None = None,
        use_mmap: bool = True,
        index_file: Any = None,
    ) -> None:
        del use_mmap, index_file
        if path is None and stream is None:
            raise TypeError("IndexedTarSamples needs `path` or `stream`")
        self.path: str | None = None if path is None else os.fspath(path)
        name = self.path or str(getattr(stream, "name", "a stream"))
        source = open_read(name) if stream is None else _as_source(stream, name)
        self._shard: IndexedShard | None = _indexed(source, name, md5sum=md5sum, samples=expected_size)
        self._length = len(self._shard)

    @classmethod
    def _of(cls, shard: IndexedShard) -> IndexedTarSamples:
        samples = cls.__new__(cls)
        samples.path, samples._shard, samples._length = shard.url, shard, len(shard)
        return samples

    @functools.cached_property
    def uuid(self) -> str:
        """A name for this object."""
        return str(uuid.uuid4())

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, idx: int) -> Sample:
        if self._shard is None:
            raise ValueError("the file is closed")
        if not -self._length <= idx < self._length:
            raise IndexError(f"index {idx} is out of range for {self._length} samples")
        sample = self._shard.sample(idx % self._length)
        key = sample.pop("__key__")
        del sample["__url__"]
        return {**{f".{field}": io.BytesIO(data) for field, data in sample.items()}, "__key__": key}

    def close(self) -> None:
        """Release the file. It is closed when no other thread reads from it."""
        self._shard = None

    def __repr__(self) -> str:
        return f"<IndexedTarSamples of {self.path or 'a stream'}>"


def _as_source(stream: IO[bytes] | Source, name: str) -> Source:
    if isinstance(stream, Source):
        return stream
    try:
        return LocalSource(name, os.dup(stream.fileno()))  # the caller may close the stream
    except (AttributeError, OSError):  # not a file of the system, such as BytesIO
        stream.seek(0)
        return InMemory(stream)


def compute_num_samples(fname: str | os.PathLike[str]) -> int:
    """Return the number of samples in a tar file."""
    return len(IndexedTarSamples(path=fname))


def compute_file_md5sum(fname: str | os.PathLike[str] | IO[bytes], chunksize: int = 1 << 20) -> str:
    """Return the MD5 sum of a file, or of an open file from its beginning. `chunksize` has no effect."""
    if isinstance(fname, str | os.PathLike):
        with open(fname, "rb") as file:
            return compute_file_md5sum(file, chunksize)
    fname.seek(0)
    return hashlib.file_digest(fname, "md5").hexdigest()  # type: ignore[arg-type]


def splitname(fname: str) -> tuple[str, str]:
    """Split a file name into the key of its sample and the extension with its dot."""
    split = first_dot(fname)
    if split is None:
        raise ValueError(f"{fname!r} has no extension")
    return split[0], f".{split[1]}"


def group_by_key(names: Iterable[str]) -> list[list[int]]:
    """Return the positions of the files of each sample. Files without an extension are left out."""
    files = [(split[0], number) for number, name in enumerate(names) if (split := first_dot(name))]
    return [[number for _, number in group] for _, group in groupby(files, operator.itemgetter(0))]


class CacheLocalname:
    """Keep shards in the directory `cache_dir`, named after the last part of their URLs."""

    def __init__(self, cache_dir: str | os.PathLike[str]) -> None:
        self.directory: str = os.fspath(cache_dir)

    def __call__(self, shard: str) -> str:
        return os.path.join(self.directory, url_to_cache_name(shard))


class DefaultLocalname(CacheLocalname):
    """Keep shards in one directory for all datasets (`WIDS_CACHE`), named after their whole URLs."""

    def __init__(self, dldir: str | os.PathLike[str] | None = None) -> None:
        super().__init__(dldir or environment.wids_cache() or environment.cache_home() / "wids")

    def __call__(self, shard: str) -> str:
        return os.path.join(self.directory, quote(shard, safe="+-"))


class LRUShards(ShardSet):
    """Up to `lru_size` open shards; beyond that, the one opened first is closed.

    Remote shards are downloaded to the file `localname(url)`, which is used as it is if it exists, and stays. Without
    `localname` they go through a `Cache`, which adds a hash to the names and removes the least recently used files
    beyond `cache_size` bytes unless `keep` is set.
    """

    def __init__(
        self,
        lru_size: int,
        keep: bool = False,
        localname: Localname | None = None,
        *,
        cache_size: int | None = None,
        shards: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        manifest = Manifest([Shard(shard["url"], shard["nsamples"]) for shard in shards])
        super().__init__(manifest, OpenOptions(open_shards=lru_size))
        self.localname: Localname = DefaultLocalname() if localname is None else localname
        self._max_bytes = int(cache_size) if cache_size and cache_size > 0 and not keep else None
        self._caches: dict[str, Cache] = {}
        self.reset_stats()

    def reset_stats(self) -> None:
        """Reset the counters."""
        self.accesses: int = 0
        self.misses: int = 0

    def __len__(self) -> int:
        return len(self._open)

    def get_shard(self, url: str, expected_size: int | None = None) -> IndexedTarSamples:
        """Return a shard, which must have `expected_size` samples."""
        shards = self.manifest.shards
        number = next((number for number, shard in enumerate(shards) if shard.url == url), len(shards))
        if number == len(shards):
            shards.append(Shard(url, -1 if expected_size is None else expected_size))
        return IndexedTarSamples._of(self.open(number))

    def open(self, number: int) -> IndexedShard:
        """Return an open shard."""
        self.accesses += 1
        return super().open(number)

    def _open_shard(self, number: int) -> IndexedShard:
        self.misses += 1
        shard = self.manifest.shards[number]
        samples = None if shard.samples < 0 else shard.samples
        return _indexed(self._source(shard.url), shard.url, samples=samples)

    def _source(self, url: str, version: str | None = None) -> Source:
        if is_local(url):
            return open_read(url)
        directory = getattr(self.localname, "directory", None)
        if directory is None:  # a function of the program
            return open_read(_download(url, self.localname(url)))
        if directory not in self._caches:  # one cache for all, because it remembers which entries it verified
            self._caches[directory] = Cache(directory, max_bytes=self._max_bytes)
        return self._caches[directory].open_read(_to_stdout(url))

    def __getstate__(self) -> dict[str, Any]:
        attributes = ("localname", "_max_bytes", "accesses", "misses")
        return super().__getstate__() | {name: getattr(self, name) for name in attributes} | {"_caches": {}}


class ShardListDataset:
    """The samples of a list of shards, as a sequence of dictionaries.

    `shards` is a list of `{"url": …, "nsamples": …}`, or the path, URL or open file of a list in JSON
    (`wids-shard-index-v1`, which `tarmac index` and `widsindex` write). The keys of samples are extensions with
    their dot. The values are open files, which `transformations` decode: functions, "PIL", "numpy", or None.

    Remote shards are downloaded to `cache_dir`, where they use up to `cache_size` bytes unless `keep` is set, or to the
    files `localname(url)`, which stay. `lru_size` shards are kept open. Relative names are resolved against `base`.
    `options` replaces values of the JSON.
    """

    def __init__(
        self,
        shards: list[dict[str, Any]] | str | os.PathLike[str] | IO[Any],
        *,
        cache_size: int = 10**12,
        cache_dir: str | os.PathLike[str] | None = None,
        lru_size: int = 10,
        dataset_name: str | None = None,
        localname: Localname | None = None,
        transformations: Any = "PIL",
        keep: bool = False,
        base: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        spec, base = _load_spec(shards, base, options)
        self.spec: dict[str, Any] = spec
        self.base: str | None = base
        self.shards: list[dict[str, Any]] = self.spec["shardlist"]
        named = shards if isinstance(shards, str | os.PathLike) else self.shards
        self.dataset_name: str | Any = dataset_name or self.spec.get("name") or hash_dataset_name(str(named))
        self.lengths: list[int] = [shard["nsamples"] for shard in self.shards]
        self.cum_lengths: NDArray[np.int64] = np.cumsum(self.lengths, dtype=np.int64)
        if cache_dir is not None:
            localname = CacheLocalname(cache_dir)
        self.localname: Localname = localname or DefaultLocalname()
        self.cache_dir: str | None = getattr(self.localname, "directory", None)
        self.transformations: list[Any] = interpret_transformations(transformations)
        if lru_size > MANY_OPEN_SHARDS:
            _log.warning("lru_size=%d may exceed the limit on open files", lru_size)
        keep = keep or bool(self.spec.get("keep"))
        self.cache: LRUShards = LRUShards(
            lru_size, keep, self.localname, cache_size=cache_size, shards=self.shards
        )
        self._fetcher = Fetcher((whole(self.cache),))
        self.total_length: int = self._fetcher.samples
        self._warned = False

    def add_transform(self, transform: Callable[[Any], Any]) -> Self:
        """Add a function that is called with each sample after the other transformations."""
        self.transformations.append(transform)
        return self

    def __len__(self) -> int:
        return self.total_length

    def get_stats(self) -> tuple[int, int]:
        """Return the number of accesses to shards, and how many of them had to open the shard."""
        return self.cache.accesses, self.cache.misses

    def check_cache_misses(self) -> None:
        """Log a warning, once, if the order of accesses opens shards too often."""
        accesses, misses = self.cache.accesses, self.cache.misses
        if misses > 0.3 * accesses > 30 and not self._warned:
            self._warned = True
            _log.warning(
                "%.0f %% of accesses had to open a shard; use a sampler such as ChunkedSampler, or a larger lru_size",
                100 * misses / accesses,
            )

    def get_shard(self, index: int) -> tuple[IndexedTarSamples, int, dict[str, Any]]:
        """Return the shard that has a sample, the position of the sample in it, and its entry in the list."""
        _, number, row = self._fetcher.locate(index)
        return IndexedTarSamples._of(self.cache.open(number)), row, self.shards[number]

    def __getitem__(self, index: int) -> Any:
        shard, row, entry = self.get_shard(index)
        sample: Any = shard[row]
        self.check_cache_misses()
        sample["__dataset__"] = entry.get("dataset")
        sample["__index__"] = operator.index(index) % self.total_length
        sample["__shard__"] = entry["url"]
        sample["__shardindex__"] = row
        for transform in self.transformations:
            sample = transform(sample)
        return sample

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(self.total_length))

    def close(self) -> None:
        """Close the open shards. They are opened again when they are needed."""
        self.cache.close()

    def __repr__(self) -> str:
        return f"<ShardListDataset {self.dataset_name}: {len(self)} samples in {len(self.shards)} shards>"


def hash_dataset_name(input_string: str) -> str:
    """Return a short name for a description."""
    return base64.urlsafe_b64encode(hashlib.sha256(input_string.encode()).digest())[:16].decode()


def _load_spec(
    shards: Any, base: str | None, options: Mapping[str, Any] | None
) -> tuple[dict[str, Any], str | None]:
    """Return the spec with the full URLs of its shards, and the directory that they are relative to."""
    if isinstance(shards, list | tuple):
        resolved = [shard | {"url": urlmerge(base or "", shard["url"])} for shard in check_shards([*shards])]
        return {**(options or {}), "shardlist": resolved}, base
    if not isinstance(shards, str | os.PathLike) and not hasattr(shards, "read"):
        raise TypeError(
            f"`shards` must be a list, or the path, URL or open file of one, got {type(shards).__name__}"
        )
    spec = load_dsdesc_and_resolve(shards, options=options, base=base)
    directory = urldir(os.fspath(shards)) if isinstance(shards, str | os.PathLike) else ""
    return spec, base if base is not None else urlmerge(directory, spec.get("base") or "") or directory


def _download(url: str, path: str) -> str:
    """Download a shard to exactly this path, unless it exists. What is not a shard does not stay there."""
    if not os.path.isfile(path):
        download_and_open(_to_stdout(url), path, handlers={scheme_of(url): _fetch_shard}).close()
    return path


def _fetch_shard(url: str, part: str) -> None:
    download(url, part)
    with LocalSource(part) as source:
        try:
            check_shard(source)
        except ArchiveError as error:
            raise error.at(url=url) from None


def _to_stdout(url: str) -> str:
    """Change a command that writes to the file `{local}`, as wids runs them, to write to standard output."""
    if scheme_of(url) != "pipe" or "{local}" not in url:
        return url
    command = url.removeprefix("pipe:").replace("{local}", '"$tarmac_dir"/shard')
    quoted = shlex.quote(command)
    return (
        "pipe:tarmac_dir=$(mktemp -d) && export tarmac_dir && trap 'rm -rf \"$tarmac_dir\"' EXIT"
        f' && sh -c {quoted} >&2 && cat "$tarmac_dir"/shard'
    )
