"""`wids.wids_specs`: lists of shards in JSON (`wids-shard-index-v1`) with the lists that they refer to.

    {"wids_version": 1, "name": …, "base": …,
     "shardlist": [{"url": "train-000.tar", "nsamples": 1000}, …],
     "datasets": [{"source_url": "other.json", "weight": 2}, {"name": …, "base": …, "shardlist": […]}]}

Lists are data: they cannot name commands, and a remote list cannot name local files.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

from tarmac.display import display_url
from tarmac.errors import BadManifest, TarmacError, UrlError
from tarmac.limits import DEFAULT_LIMITS
from tarmac.storage import is_local, scheme_of
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import check_listed, parse_manifest, read_list

Shard = dict[str, Any]
Spec = dict[str, Any]


def urldir(url: str) -> str:
    """Return the directory of a URL or file name."""
    if is_local(url):
        return os.path.dirname(url)
    if scheme_of(url) == "pipe":
        return ""
    parts = urlsplit(url)
    return urlunsplit((*parts[:2], posixpath.dirname(parts.path), "", ""))


def urlmerge(base: str, url: str) -> str:
    """Resolve a name against the directory `base`. URLs with a scheme and absolute names are returned unchanged."""
    if scheme_of(url) or not base:
        return url
    if is_local(base):
        return os.path.normpath(os.path.join(base, url))
    parts, (path, mark, query) = urlsplit(base), url.partition("?")
    merged = posixpath.normpath(posixpath.join(parts.path or "/", path))
    return urlunsplit((parts.scheme, parts.netloc, merged, "", "")) + mark + query


def rebase_shardlist(shardlist: list[Shard], base: str | None) -> list[Shard]:
    """Resolve the names of shards against the directory `base`, in place."""
    for shard in shardlist if base is not None else ():
        shard["url"] = urlmerge(base or "", shard["url"])
    return shardlist


def check_shards(l: Any) -> list[Shard]:  # noqa: E741 (the name in wids)
    """Return a list of shards. Raise if one has no `url` or no valid number of samples."""
    if not isinstance(l, list):
        raise BadManifest(f"expected a list of shards, got {type(l).__name__}.")
    for shard in l:
        if not isinstance(shard, dict) or not isinstance(shard.get("url"), str):
            raise BadManifest(f"expected an object with `url` and `nsamples`, got {str(shard)[:60]}.")
        samples = shard.get("nsamples")
        if not isinstance(samples, int) or samples < 0:
            raise BadManifest(
                f"`nsamples` of {display_url(shard['url'])} must be 0 or more, got {samples!r}.",
                hint="tarmac index SHARDS -o NEW.json writes a list with the number of samples.",
            )
    return l


def set_all(l: list[Shard], k: str, v: Any) -> None:  # noqa: E741 (the name in wids)
    """Set the value for `k` in all shards that have none, unless it is None."""
    for shard in l if v is not None else ():
        shard.setdefault(k, v)


def load_remote_dsdesc_raw(source: str | os.PathLike[str] | IO[Any]) -> Spec:
    """Read a list from a path, a URL, or an open file."""
    try:
        if isinstance(source, str | os.PathLike):
            return parse_manifest(read_list(os.fspath(source), DEFAULT_LIMITS, DEFAULT_STORAGE))
        return parse_manifest(source.read())
    except UrlError as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else None
        raise BadManifest(error.what, url=name, hint=error.hint) from None


def resolve_dsdesc(
    dsdesc: Spec, *, options: Mapping[str, Any] | None = None, base: str | None = None, source: str = ""
) -> Spec:
    """Return a list with the full URLs of all shards, including those of its `datasets`.

    Names are relative to `base`, else to the `base` of the list, else to the directory of `source`, its URL.
    """
    spec = {**dsdesc, **(options or {})}
    if spec.get("wids_version") != 1:
        raise BadManifest(f"`wids_version` must be 1, got {spec.get('wids_version')!r}.")
    shards = _resolve_shards(spec, base, source)
    set_all(shards, "weight", spec.get("weight"))
    set_all(shards, "name", spec.get("name"))
    for dataset in spec.get("datasets") or ():
        shards += _dataset_shards(dataset, base, source)
    if not shards:
        raise BadManifest("the list has no shards.")
    return {**spec, "shardlist": shards}


def load_dsdesc_and_resolve(
    source: str | os.PathLike[str] | IO[Any],
    *,
    options: Mapping[str, Any] | None = None,
    base: str | None = None,
) -> Spec:
    """Read a list and the lists that it refers to; see `resolve_dsdesc`."""
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    try:
        return resolve_dsdesc(load_remote_dsdesc_raw(source), options=options, base=base, source=name)
    except TarmacError as error:
        error.at(url=name or None)
        raise


def _dataset_shards(dataset: Any, base: str | None, source: str) -> list[Shard]:
    """Return the shards of one of the `datasets`, from its `shardlist` or its `source_url`."""
    if not isinstance(dataset, dict):
        raise BadManifest(f"each of the `datasets` must be an object, got {str(dataset)[:60]}.")
    weight, url = dataset.get("weight"), dataset.get("source_url")
    if url is not None:
        name, url = str(url), urlmerge(urldir(source), str(url))
        check_listed(source, name, url)
        dataset, base, source = load_remote_dsdesc_raw(url), None, url
        if "source_url" in dataset:
            raise BadManifest("a list named by `source_url` cannot have a `source_url` itself.", url=url)
    if "shardlist" not in dataset:
        raise BadManifest("each of the `datasets` needs a `shardlist` or a `source_url`.", url=url)
    shards = _resolve_shards(dataset, base, source)
    for name, value in (("weight", weight), ("source_url", url), ("dataset", dataset.get("name"))):
        set_all(shards, name, value)
    return shards


def _resolve_shards(spec: Spec, base: str | None, source: str) -> list[Shard]:
    """Return copies of the shards of one list, with full URLs."""
    shards = [dict(shard) for shard in check_shards(spec.get("shardlist") or [])]
    if not isinstance(spec.get("base"), str | None):
        raise BadManifest("the `base` of a list must be a string.")
    if base is None:
        base = urlmerge(urldir(source), spec.get("base") or "")
    else:
        source = ""  # code may choose a local directory for a remote list
    for shard in shards:
        name, shard["url"] = shard["url"], urlmerge(base, shard["url"])
        check_listed(source, name, shard["url"])
    return shards
