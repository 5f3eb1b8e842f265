"""Any shards as an indexed dataset, for verbs that need every sample by number.

Shards without addresses (standard input, commands, compressed ones) are unpacked into a working directory
first, and those whose samples lie in pieces get an index there that puts them together.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import xxhash

from tarmac.errors import DiskFull, IndexingError, SplitSample, TarmacError, UrlError, WriteError
from tarmac.exact.dataset import Dataset
from tarmac.exact.selection import whole
from tarmac.exact.shardset import Opening, ShardSet
from tarmac.indexing.build import REQUESTS, IndexOptions, find_or_make_index, index_shard
from tarmac.indexing.manifest import Manifest, Shard
from tarmac.indexing.sidecar import open_sidecar, sidecar_url, write_sidecar
from tarmac.limits import DEFAULT_LIMITS
from tarmac.progress import progress
from tarmac.runtime.lookahead import in_threads
from tarmac.storage import Cache, StorageOptions, is_local, open_read, scheme_of, stat
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar.compression import HEAD, Decompressing, detect
from tarmac.tools.permutations import permutation_text
from tarmac.tools.plan import IndexedSamples, can_index, shard_stem
from tarmac.tools.select import Select
from tarmac.tools.sort.regroup import regrouped

__all__ = ["disk_errors", "gather", "Gathered", "GatheredSamples", "unpack", "workplace"]

CHUNK = 1 << 20


@contextlib.contextmanager
def workplace(verb: str, tmp: str = "") -> Iterator[str]:
    """A new directory in `tmp`, or where the system keeps such; it alone is removed at the end."""
    try:
        made = tempfile.TemporaryDirectory(
            prefix=f"tarmac-{verb}-", dir=tmp or None, ignore_cleanup_errors=True
        )
    except OSError as error:
        hint = "--tmp DIR, a directory that can be written to and has room."
        raise UrlError(
            f"no working directory can be made: {error.strerror}.", url=tmp or None, hint=hint
        ) from None
    with made as home:
        yield home


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Say what it means when a working file cannot be written."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TarmacError):
            raise
        hint = "--tmp DIR, a directory that can be written to and has room."
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = f"a working file cannot be written: {error.strerror or error}."
        raise (DiskFull if full else WriteError)(what, url=path, hint=hint) from error


@dataclass(frozen=True)
class Gathered:
    """Shards that are indexed, wherever that had to be done."""

    manifest: Manifest
    storage: StorageOptions = DEFAULT_STORAGE
    cache: Cache | None = None
    origins: dict[str, str] = field(default_factory=dict)
    """For each shard that was unpacked, by where it is now: what the user calls it."""
    versions: str = ""
    """What changes when the bytes of a shard do, be they in a file, a store or a stream."""

    def dataset(self) -> Dataset:
        """The samples of all shards; reading them takes little memory, in any order."""
        opening = Opening(cache=self.cache, storage=self.storage, mapped=False)
        return Dataset.of_parts([whole(ShardSet(self.manifest, opening))])


@dataclass(frozen=True)
class GatheredSamples(IndexedSamples):
    """Samples of gathered shards; unpacked ones are known by what is in them, not by where they are."""

    versions: str = ""

    def fingerprint(self) -> str:
        """A hash of which samples there are, of their bytes, and of their order."""
        facts = f"{self.dataset.fingerprint} {permutation_text(self.permutation)} {self.versions}"
        return xxhash.xxh3_64_hexdigest(facts.encode())


def gather(
    urls: Sequence[str],
    home: str,
    select: Select,
    *,
    cache: Cache | None = None,
    show: bool | None = None,
) -> Gathered:
    """Index shards; what is made for this alone goes into the directory `home`."""
    options = IndexOptions(meta=select.meta, storage=select.storage)

    def one(numbered: tuple[int, str]) -> tuple[Shard, str]:
        return _indexed(*numbered, home, options)

    near = all(is_local(url) or scheme_of(url) in ("-", "pipe") for url in urls)
    made = map(one, enumerate(urls)) if near else in_threads(one, list(enumerate(urls)), REQUESTS)
    found = list(progress(made, len(urls), "indexing", show=show))
    origins = {shard.url: url for (shard, _), url in zip(found, urls, strict=True) if shard.url != url}
    versions = "\n".join(f"{url} {version}" for (_, version), url in zip(found, urls, strict=True))
    digest = xxhash.xxh3_64_hexdigest(versions.encode("utf-8", "surrogateescape"))
    return Gathered(Manifest([shard for shard, _ in found]), select.storage, cache, origins, digest)


def _indexed(number: int, url: str, home: str, options: IndexOptions) -> tuple[Shard, str]:
    """Index a shard, and say what changes when it does."""
    place = f"{home}/shards/{number:06d}"
    if not can_index([url]):
        return _unpacked(url, place, options)
    try:
        sidecar, index = find_or_make_index(url, options, beside=False)
    except SplitSample:
        if is_local(url):
            return _indexed_here(url, url, place, options), str(stat(url, options.storage))
        return _unpacked(url, place, options)
    except IndexingError as error:
        if type(error) is not IndexingError:
            raise
        # What is compressed has no addresses, whatever its name says.
        return _unpacked(url, place, options)
    facts = sidecar.facts
    version = str(stat(url, options.storage)) if is_local(url) else f"{facts.size} {facts.version}"
    return Shard(url, facts.samples, facts.size, index, facts.fingerprint), version


def _indexed_here(path: str, url: str, place: str, options: IndexOptions) -> Shard:
    """Index a local shard with the index in the working directory, its samples put together if need be."""
    index = f"{place}/{sidecar_url('index')}"
    options = replace(options, storage=DEFAULT_STORAGE)
    try:
        try:
            content = index_shard(path, options)
        except SplitSample:
            content = regrouped(path, options.meta)
    except TarmacError as error:
        if path != url:  # the user knows nothing of the copy
            error.url = None
            error.at(url=url)
        raise
    with disk_errors(place):
        os.makedirs(place, exist_ok=True)
    write_sidecar(index, content)
    facts = open_sidecar(index).facts
    return Shard(path, facts.samples, facts.size, index, facts.fingerprint)


def _unpacked(url: str, place: str, options: IndexOptions) -> tuple[Shard, str]:
    """Write the bytes of a shard to a plain file, and index that."""
    stem = "stream" if scheme_of(url) in ("-", "pipe") else shard_stem(url)
    path = f"{place}/{stem}.tar"
    digest = unpack(url, path, options.storage)
    return _indexed_here(path, url, place, options), digest


def unpack(url: str, path: str, storage: StorageOptions) -> str:
    """Write to a local file what is at a URL, without its compression; return a digest of it."""
    digest = xxhash.xxh3_128()
    with open_read(url, storage) as source:
        head = b""
        while len(head) < HEAD and (more := source.read(CHUNK)):
            head += more
        form = detect(head)
        stream = source if form is None else Decompressing(source, form, DEFAULT_LIMITS, head)
        with disk_errors(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                chunk = head if form is None else stream.read(CHUNK)
                while chunk:
                    digest.update(chunk)
                    file.write(chunk)
                    chunk = stream.read(CHUNK)
    return digest.hexdigest()
