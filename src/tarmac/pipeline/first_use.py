"""From what the user named to a manifest: shards that have no index are indexed on first use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from tarmac.index.manifest import Manifest, Shard, read_manifest
from tarmac.index.meta import MetaPlan
from tarmac.pipeline.shardset import REQUESTS, find_or_make_index
from tarmac.pipeline.threads import in_threads
from tarmac.progress import progress
from tarmac.samples.indexing import IndexOptions
from tarmac.storage import StorageOptions, is_local
from tarmac.urls import Shards, ShardUrl, expand

__all__ = ["manifest_of"]


def manifest_of(
    source: Shards | Manifest,
    storage: StorageOptions,
    *,
    digests: bool = False,
    meta: MetaPlan | None = None,
    beside: bool = True,
    show: bool | None = None,
) -> Manifest:
    """Return the manifest that `source` is or names, or one made of the shards it stands for.

    Indexes that have to be made go beside their shards if that is possible, or only among our own files.
    """
    if isinstance(source, Manifest):
        return source
    if isinstance(source, str | os.PathLike) and not isinstance(source, ShardUrl):
        name = os.fspath(source)
        if name.partition("?")[0].lower().endswith(".json"):
            return read_manifest(name, storage)
    urls = expand(source, options=storage)
    options = IndexOptions(digests=digests, meta=meta, storage=storage)
    return Manifest(list(progress(_indexed(urls, options, beside), len(urls), "indexing", show=show)))


def _indexed(urls: Sequence[str], options: IndexOptions, beside: bool) -> Iterator[Shard]:
    def one(url: str) -> Shard:
        sidecar, place = find_or_make_index(url, options, beside=beside)
        facts = sidecar.facts
        return Shard(url, facts.samples, facts.size, place, facts.fingerprint)

    return map(one, urls) if all(map(is_local, urls)) else in_threads(one, urls, REQUESTS)
