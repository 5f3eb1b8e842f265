"""Index any shards, for verbs that need every sample by number.

Standard input, commands and compressed shards are unpacked into a working directory first. Shards whose
samples are not contiguous get an index there that groups their members.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import numpy as np
import xxhash

from tarmac.errors import IndexingError, RepeatedSample, SplitSample, TarmacError
from tarmac.exact.dataset import Dataset
from tarmac.exact.selection import whole
from tarmac.exact.shardset import ShardSet
from tarmac.indexing.build import IndexOptions, find_or_make_index, index_shard, indexed_shard, manifest_of
from tarmac.indexing.manifest import Inputs, Manifest, Shard
from tarmac.indexing.sidecar import open_sidecar, sidecar_url, write_sidecar
from tarmac.jobs.entries import public_name
from tarmac.jobs.task import Status
from tarmac.storage import is_local, scheme_of, stat
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import ShardUrl
from tarmac.tools.localcopy import decompressed
from tarmac.tools.options import Access
from tarmac.tools.plan import can_index, columns_for, shard_stem
from tarmac.tools.regroup import index_scattered
from tarmac.tools.select import Select
from tarmac.tools.workdir import disk_errors


@dataclass(frozen=True)
class Gathered:
    """Indexed shards, wherever their indexes are."""

    manifest: Manifest
    access: Access = field(default_factory=Access)
    origins: dict[str, str] = field(default_factory=dict)
    """The URLs of unpacked shards, by the paths of their copies."""
    versions: str = ""
    """A hash that changes with the bytes of the shards, as earlier versions recorded it."""
    unpacked: dict[str, tuple[str, Status]] = field(default_factory=dict)
    """The URLs of unpacked shards and the digests of their bytes, by the paths of their copies."""

    def dataset(self) -> Dataset:
        """Return the samples of all shards, to be read in any order with little memory."""
        return Dataset._of_parts([whole(ShardSet(self.manifest, self.access.opening(mapped=False)))])

    def url(self, dataset: Dataset, number: int) -> str:
        """Return the URL of the shard that a sample of a subset comes from, as the user gave it."""
        part, shard = dataset._fetcher.shard(int(dataset._fetcher.shard_numbers(np.array([number]))[0]))
        url = part.shards.url(shard)
        return self.origins.get(url, url)


def gather(
    inputs: Inputs,
    directory: str,
    select: Select,
    access: Access,
    *,
    progress: bool | None = None,
    processes: int = 1,
) -> Gathered:
    """Index shards; what is created for this job alone goes into the directory."""
    options = replace(access.indexing, meta=columns_for(inputs, select, access))
    versions: dict[int, str] = {}

    def index_one(number: int, given: Shard | ShardUrl) -> Shard:
        url = inputs.urls[number]
        if isinstance(given, Shard) and can_index([url]):
            shard, version = given, _version(given, options)
        else:
            shard, version = _indexed(url, f"{directory}/shards/{number:06d}", options)
        versions[number] = f"{url} {version}"
        return shard

    manifest = manifest_of(
        inputs, options, beside=False, index_one=index_one, progress=progress, processes=processes
    )
    lines = "\n".join(versions[number] for number in range(len(versions)))
    digest = xxhash.xxh3_64_hexdigest(lines.encode("utf-8", "surrogateescape"))
    copies = enumerate(zip(manifest.urls, inputs.urls, strict=True))
    unpacked: dict[str, tuple[str, Status]] = {
        copy: (public_name(url), [versions[number]]) for number, (copy, url) in copies if copy != url
    }
    origins = dict(zip(manifest.urls, inputs.urls, strict=True))
    return Gathered(manifest, access, {copy: origins[copy] for copy in unpacked}, digest, unpacked)


def _indexed(url: str, directory: str, options: IndexOptions) -> tuple[Shard, str]:
    """Return a shard with its index, and the version of its bytes."""
    if not can_index([url]):
        return _unpacked(url, directory, options)
    try:
        sidecar, index = find_or_make_index(url, options, beside=False)
    except RepeatedSample:
        raise
    except SplitSample:
        if is_local(url):
            return _indexed_locally(url, url, directory, options), str(stat(url, options.storage))
        return _unpacked(url, directory, options)
    except IndexingError as error:
        if type(error) is not IndexingError:
            raise
        return _unpacked(url, directory, options)  # compressed, although its name does not say so
    facts = sidecar.facts
    version = str(stat(url, options.storage)) if is_local(url) else f"{facts.size} {facts.version}"
    return indexed_shard(url, sidecar, index), version


def _version(shard: Shard, options: IndexOptions) -> str:
    return str(stat(shard.url, options.storage)) if is_local(shard.url) else str(shard.fingerprint)


def _indexed_locally(path: str, url: str, directory: str, options: IndexOptions) -> Shard:
    """Index a local shard or copy, with the index in the working directory."""
    index = f"{directory}/{sidecar_url('index')}"
    options = replace(options, storage=DEFAULT_STORAGE)
    try:
        try:
            content = index_shard(path, options)
        except RepeatedSample:
            raise
        except SplitSample:
            content = index_scattered(path, options)
    except TarmacError as error:
        if path != url:  # name the URL, not the copy
            error.url = None
            error.at(url=url)
        raise
    with disk_errors(directory):
        os.makedirs(directory, exist_ok=True)
    write_sidecar(index, content)
    return indexed_shard(path, open_sidecar(index), index)


def _unpacked(url: str, directory: str, options: IndexOptions) -> tuple[Shard, str]:
    stem = "stream" if scheme_of(url) in ("-", "pipe") else shard_stem(url)
    path = f"{directory}/{stem}.tar"
    digest = unpack(url, path, options)
    return _indexed_locally(path, url, directory, options), digest


def unpack(url: str, path: str, options: IndexOptions) -> str:
    """Write the decompressed bytes of a URL to a local file, and return their digest."""
    digest = xxhash.xxh3_128()
    with disk_errors(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            for chunk in decompressed(url, options.storage, options.tar.limits):
                digest.update(chunk)
                file.write(chunk)
    return digest.hexdigest()
