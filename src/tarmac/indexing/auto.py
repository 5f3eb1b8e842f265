"""Index shards on first use: from what the user named to a manifest."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence

from tarmac import environment
from tarmac.display import display_url
from tarmac.errors import AccessDenied, WriteError
from tarmac.indexing.build import DEFAULT_INDEXING, IndexOptions, index_shard, keeping, usable_index
from tarmac.indexing.manifest import Manifest, Shard, read_manifest
from tarmac.indexing.sidecar import Sidecar, open_sidecar, sidecar_url, write_sidecar
from tarmac.progress import track
from tarmac.runtime.threads import in_threads
from tarmac.storage import is_local
from tarmac.storage.local import local_path
from tarmac.storage.urls import Shards, ShardUrl, expand

__all__ = ["find_or_make_index", "manifest_of"]

REQUESTS = 16
"""Shards in a store that are looked at at a time."""


def manifest_of(
    source: Shards | Manifest,
    options: IndexOptions = DEFAULT_INDEXING,
    *,
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
            return read_manifest(name, options.storage, options.tar.limits)
    urls = expand(source, limits=options.tar.limits, storage=options.storage)
    return Manifest(list(track(_indexed(urls, options, beside), len(urls), "indexing", progress=show)))


def _indexed(urls: Sequence[str], options: IndexOptions, beside: bool) -> Iterator[Shard]:
    def one(url: str) -> Shard:
        sidecar, place = find_or_make_index(url, options, beside=beside)
        facts = sidecar.facts
        return Shard(url, facts.samples, facts.size, place, facts.fingerprint)

    return map(one, urls) if all(map(is_local, urls)) else in_threads(one, urls, REQUESTS)


def find_or_make_index(url: str, options: IndexOptions, *, beside: bool = True) -> tuple[Sidecar, str]:
    """Return the index of a shard and where it is: beside it, among our own files, or made now.

    An index made here is put `beside` the shard if that is a directory of this machine we may write to, else
    among our own files; nothing is put into a bucket unasked.
    """
    near, own = sidecar_url(url), _own_place(url)
    for place in (near, own):
        found = usable_index(url, place, options)
        if found is not None:
            return found, place
    content = index_shard(url, keeping(options, near, own))
    if beside and is_local(url):
        try:
            write_sidecar(near, content)
            return open_sidecar(near), near
        except (WriteError, AccessDenied):
            pass
    try:
        os.makedirs(os.path.dirname(own), exist_ok=True)
        write_sidecar(own, content)
    except (OSError, WriteError) as error:
        raise WriteError(
            f"the index can be put neither beside its shard nor into {os.path.dirname(own)}: "
            f"{_reason(error)}",
            url=url,
            hint="set TARMAC_HOME to a directory that can be written to, or tarmac index --sidecars DIR.",
        ) from error
    return open_sidecar(own), own


def _reason(error: OSError) -> str:
    return error.what if isinstance(error, WriteError) else f"{error.strerror}."


def _own_place(url: str) -> str:
    """Where our own index of a shard is kept: a name from the whole URL, since many end alike."""
    place = url if not is_local(url) else os.path.abspath(local_path(url))
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", display_url(place).partition("?")[0].rpartition("/")[2])[-80:]
    digest = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return str(environment.cache_home() / "index" / f"{digest}-{name}.arrow")
