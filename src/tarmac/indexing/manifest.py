"""A dataset as a list of indexed shards: one JSON file, a superset of `wids-shard-index-v1`.

It says how many samples each shard has, so that the order of an epoch is known without opening any
shard, and a fingerprint of each shard's index, so that a state saved for other data is refused.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import xxhash

from tarmac.display import display_url, holds_secret
from tarmac.errors import (
    AccessDenied,
    BadManifest,
    NotFound,
    SecretsWritten,
    UnsafeUrl,
    UnsupportedScheme,
    UrlError,
)
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.storage import StorageOptions, is_local, is_stream, scheme_of, write_all
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE, WriteOptions
from tarmac.storage.urls import ShardUrl, allowed_name, manifest_shards, parse_manifest, read_list

__all__ = ["Manifest", "Shard", "manifest_there", "read_manifest", "write_manifest"]

KIND = "wids-shard-index-v1"
VERSION = 1
MOST = 1 << 31
"""Samples of one shard that an index can number."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a dataset: where it is and what its index says of it."""

    url: str
    samples: int
    size: int | None = None
    index: str | None = None
    """Where its sidecar is; None for beside it, or for one that is still to be made."""
    fingerprint: str | None = None
    extra: dict[str, Any] = field(default_factory=dict, hash=False)
    """What other tools say of the shard (`md5sum`, `dataset`, …), kept as it is."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards of a dataset, in order, and what its makers say of it."""

    shards: list[Shard]
    name: str = ""
    info: Any = None

    @property
    def samples(self) -> int:
        """How many samples there are in all."""
        return sum(shard.samples for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """A hash of what is in the shards, wherever they lie."""
        digest = xxhash.xxh3_128()
        for shard in self.shards:
            content = shard.fingerprint or f"{os.path.basename(shard.url)}:{shard.size}"
            digest.update(f"{shard.samples} {content}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def read_manifest(
    url: str, storage: StorageOptions = DEFAULT_STORAGE, limits: Limits = DEFAULT_LIMITS
) -> Manifest:
    """Read a manifest of tarmac or of widsindex; names in it are relative to where it lies."""
    try:
        found = parse_manifest(read_list(url, limits, storage))
        _check_kind(found, url)
        resolve = _resolver(url)
        shards = [_shard(entry, resolve) for entry in manifest_shards(found)]
    except UrlError as error:
        if isinstance(error, FileNotFoundError | PermissionError | UnsafeUrl):
            raise
        raise BadManifest(error.what, url=url, hint=error.hint) from None
    if not shards:
        raise BadManifest("the manifest lists no shards.", url=url)
    return Manifest(shards, str(found.get("name") or ""), found.get("info"))


def manifest_there(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> list[Shard] | None:
    """Return the shards of a manifest that is about to be replaced; None if there is nothing to be lost.

    UrlError is raised where there is something else. Whoever may write need not be allowed to look.
    """
    if is_stream(url):
        return None
    try:
        text = read_list(url, DEFAULT_LIMITS, storage)
        if not text:
            return None
        found = parse_manifest(text)
        _check_kind(found, url)
        resolve = _resolver(url)
        return [_shard(entry, resolve) for entry in manifest_shards(found)]
    except (UrlError, BadManifest) as error:
        if isinstance(error, NotFound | UnsupportedScheme) or (
            isinstance(error, AccessDenied) and not is_local(url)
        ):
            return None
        what = f"this file exists and is not a manifest ({error.what.rstrip('.')})."
        raise UrlError(what, url=url, hint="another name, or remove the file first.") from None


def _check_kind(found: dict[str, Any], url: str) -> None:
    if "shardlist" not in found and "datasets" not in found:
        raise BadManifest("a manifest needs a `shardlist`.", url=url, hint="tarmac index SHARDS -o FILE.json")
    kind, wids, ours = found.get("__kind__", KIND), found.get("wids_version", 1), found.get("tarmac")
    version = ours.get("version") if isinstance(ours, dict) else VERSION
    if (kind, wids, version) != (KIND, 1, VERSION):
        raise BadManifest(
            f"this is a manifest of kind {kind!r}, wids {wids!r}, tarmac {version!r}; "
            f"known here are {KIND!r}, wids 1, tarmac {VERSION}.",
            url=url,
            hint="a newer tarmac, or tarmac index with this one.",
        )


_PLAIN = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)
_OURS = frozenset(("url", "nsamples", "filesize", "index", "fingerprint"))


def _resolver(manifest: str) -> Callable[[str], ShardUrl]:
    """How names are resolved; plain ones, of which there may be a hundred thousand, without looking twice."""
    folder = allowed_name(manifest, "x").removesuffix("x")

    def resolve(name: str) -> ShardUrl:
        return ShardUrl(folder + name) if _PLAIN.fullmatch(name) else allowed_name(manifest, name)

    return resolve


def _shard(entry: dict[str, Any], resolve: Callable[[str], ShardUrl]) -> Shard:
    samples, size = entry.get("nsamples"), entry.get("filesize")
    if type(samples) is not int or not 0 <= samples < MOST:
        raise UrlError(f"{entry['url']!r} has no nsamples that is a number of 0 or more: {samples!r}.")
    if size is not None and (type(size) is not int or size < 0):
        raise UrlError(f"{entry['url']!r} has a filesize that is no number of 0 or more: {size!r}.")
    index, fingerprint = entry.get("index"), entry.get("fingerprint")
    if not isinstance(index, str | None) or not isinstance(fingerprint, str | None):
        raise UrlError(f"{entry['url']!r}: index and fingerprint are strings.")
    return Shard(
        resolve(entry["url"]),
        samples,
        size,
        None if index is None else resolve(index),
        fingerprint,
        {name: value for name, value in entry.items() if name not in _OURS},
    )


def write_manifest(manifest: Manifest, url: str, storage: StorageOptions = DEFAULT_STORAGE) -> None:
    """Write a manifest, whole; shards that lie beside or below it get relative names."""
    found: dict[str, Any] = {"__kind__": KIND, "wids_version": 1, "name": manifest.name}
    if manifest.info is not None:
        found["info"] = manifest.info
    found["tarmac"] = {
        "version": VERSION,
        "samples": manifest.samples,
        "fingerprint": manifest.fingerprint,
    }
    entries = found["shardlist"] = list(_entries(manifest.shards, url))
    private = any(holds_secret(each["url"]) or holds_secret(each.get("index", "")) for each in entries)
    # Names that are not UTF-8 are written as JSON escapes, and read back as they were.
    text = json.dumps(found, ensure_ascii=False, indent=1) + "\n"
    write_all(url, text.encode("utf-8", "backslashreplace"), storage, WriteOptions(private=private))
    if private:
        who = "only its owner can read it (mode 0600)" if is_local(url) else "mind who can read it"
        text = f"{display_url(url)} holds the credentials that are part of the shards' URLs; {who}."
        warnings.warn(text, SecretsWritten, stacklevel=2)


def _entries(shards: Iterable[Shard], manifest: str) -> Iterable[dict[str, Any]]:
    for shard in shards:
        entry: dict[str, Any] = {"url": relative_name(shard.url, manifest), "nsamples": shard.samples}
        if shard.size is not None:
            entry["filesize"] = shard.size
        if shard.index is not None:
            entry["index"] = relative_name(shard.index, manifest)
        if shard.fingerprint is not None:
            entry["fingerprint"] = shard.fingerprint
        yield shard.extra | entry


def relative_name(url: str, manifest: str) -> str:
    """How a manifest names a shard: relative to itself where the shard lies below it."""
    if is_local(manifest):
        if not is_local(url):
            return url
        path = os.path.abspath(local_path(url))
        folder = os.path.dirname(os.path.abspath(local_path(manifest)))
        inside = path.startswith(folder.rstrip(os.sep) + os.sep)
        return _unambiguous(os.path.relpath(path, folder)) if inside else path
    if is_local(url):
        raise UrlError(
            "a manifest in a store cannot name a file of this machine; nobody else could open it.",
            url=url,
            hint="a local manifest, or copy the shards first.",
        )
    folder = manifest.partition("?")[0].rpartition("/")[0] + "/"
    name = url.removeprefix(folder)
    return url if scheme_of(name) or urlsplit(url).query or urlsplit(url).fragment else name


def _unambiguous(name: str) -> str:
    """A file called `a://b` or `pipe:x` must not be taken for a URL, nor `-` for standard input."""
    return f"./{name}" if ":" in name or name.startswith(("-", "~", "@")) or name[0].isspace() else name
