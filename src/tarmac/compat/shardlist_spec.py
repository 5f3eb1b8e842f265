"""A list of shards in JSON (`wids-shard-index-v1`) with everything it refers to: which shards, and where.

    {"wids_version": 1, "name": …, "base": …,
     "shardlist": [{"url": "train-000.tar", "nsamples": 1000}, …],
     "datasets": [{"source_url": "other.json", "weight": 2}, {"name": …, "base": …, "shardlist": […]}]}

Lists are data: none of them can name a command, and a remote one no files of this machine.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

from tarmac.display import display_url
from tarmac.errors import BadManifest, TarmacError, UnsafeUrl, UrlError
from tarmac.limits import DEFAULT_LIMITS
from tarmac.storage import is_local, is_stream, scheme_of
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import parse_manifest, read_list

__all__ = [
    "check_shards",
    "load_dsdesc_and_resolve",
    "load_remote_dsdesc_raw",
    "rebase_shardlist",
    "resolve_dsdesc",
    "set_all",
    "urldir",
    "urlmerge",
]

Shard = dict[str, Any]
Spec = dict[str, Any]


def urldir(url: str) -> str:
    """The directory that a URL or a file name is in."""
    if is_local(url):
        return os.path.dirname(url)
    if scheme_of(url) == "pipe":
        return ""
    parts = urlsplit(url)
    return urlunsplit((*parts[:2], posixpath.dirname(parts.path), "", ""))


def urlmerge(base: str, url: str) -> str:
    """A name in a list, seen from the directory `base`; whole URLs and absolute names stay themselves."""
    if scheme_of(url) or not base:
        return url
    if is_local(base):
        return os.path.normpath(os.path.join(base, url))
    store, (path, mark, query) = urlsplit(base), url.partition("?")
    merged = posixpath.normpath(posixpath.join(store.path or "/", path))
    return urlunsplit((store.scheme, store.netloc, merged, "", "")) + mark + query


def rebase_shardlist(shardlist: list[Shard], base: str | None) -> list[Shard]:
    """Put the directory `base` before the names of shards, in place."""
    for shard in shardlist if base is not None else ():
        shard["url"] = urlmerge(base or "", shard["url"])
    return shardlist


def check_shards(l: Any) -> list[Shard]:  # noqa: E741 (their name)
    """Return a list of shards, or raise unless each has a `url` and a number of samples."""
    if not isinstance(l, list):
        raise BadManifest(f"a list of shards is a list, not {type(l).__name__}.")
    for shard in l:
        if not isinstance(shard, dict) or not isinstance(shard.get("url"), str):
            raise BadManifest(f"each shard is an object with a `url` and `nsamples`, not {str(shard)[:60]}.")
        samples = shard.get("nsamples")
        if not isinstance(samples, int) or samples < 0:
            raise BadManifest(
                f"{display_url(shard['url'])} needs `nsamples`, a number of 0 or more, not {samples!r}.",
                hint="tarmac index SHARDS -o FILE.json counts them.",
            )
    return l


def set_all(l: list[Shard], k: str, v: Any) -> None:  # noqa: E741 (their name)
    """Give the shards that have no value for `k` this one, unless it is None."""
    for shard in l if v is not None else ():
        shard.setdefault(k, v)


def load_remote_dsdesc_raw(source: str | os.PathLike[str] | IO[Any]) -> Spec:
    """Read a list from a file, a URL, or an open file."""
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
    """Return a list with all its shards, those of the datasets it refers to included, under whole names.

    Names are relative to `base`, else to the `base` in the list, else to where the list, `source`, lies.
    """
    spec = {**dsdesc, **(options or {})}
    if spec.get("wids_version") != 1:
        raise BadManifest(f"`wids_version` must be 1, found {spec.get('wids_version')!r}.")
    shards = _located(spec, base, source)
    set_all(shards, "weight", spec.get("weight"))
    set_all(shards, "name", spec.get("name"))
    for part in spec.get("datasets") or ():
        shards += _of_part(part, base, source)
    if not shards:
        raise BadManifest("the list has no shards.")
    return {**spec, "shardlist": shards}


def load_dsdesc_and_resolve(
    source: str | os.PathLike[str] | IO[Any],
    *,
    options: Mapping[str, Any] | None = None,
    base: str | None = None,
) -> Spec:
    """Read a list and all it refers to."""
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    try:
        return resolve_dsdesc(load_remote_dsdesc_raw(source), options=options, base=base, source=name)
    except TarmacError as error:
        error.at(url=name or None)
        raise


def _of_part(part: Any, base: str | None, source: str) -> list[Shard]:
    """The shards of one of the `datasets`: listed here, or in a file of its own."""
    if not isinstance(part, dict):
        raise BadManifest(f"each of the `datasets` is an object, not {str(part)[:60]}.")
    weight, place = part.get("weight"), part.get("source_url")
    if place is not None:
        place = _allow(urlmerge(urldir(source), str(place)), source)
        part, base, source = load_remote_dsdesc_raw(place), None, place
        if "source_url" in part:
            raise BadManifest("a list that is referred to cannot refer to another.", url=place)
    if "shardlist" not in part:
        raise BadManifest("each of the `datasets` needs a `shardlist` or a `source_url`.", url=place)
    shards = _located(part, base, source)
    for name, value in (("weight", weight), ("source_url", place), ("dataset", part.get("name"))):
        set_all(shards, name, value)
    return shards


def _located(spec: Spec, base: str | None, source: str) -> list[Shard]:
    """The shards of one list under whole names; the list itself is not changed."""
    shards = [dict(shard) for shard in check_shards(spec.get("shardlist") or [])]
    there = spec.get("base")
    if not isinstance(there, str | None):
        raise BadManifest("the `base` of a list is a string.")
    by_code = base is not None
    if base is None:
        base = urlmerge(urldir(source), there or "")
    for shard in rebase_shardlist(shards, base):
        _allow(shard["url"], source, by_code=by_code)
    return shards


def _allow(url: str, source: str, *, by_code: bool = False) -> str:
    """Return a name from a list, unless it asks for what only code may ask for."""
    if is_stream(url):
        raise UnsafeUrl(f"a list names {url[:60]!r}; commands run only when code asks for them.")
    if is_local(url) and not is_local(source) and not by_code:
        raise UnsafeUrl(f"a remote list names the local file {url[:60]!r}.")
    return url
