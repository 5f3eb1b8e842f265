"""Read and write manifests: the shards of a dataset in one JSON file, a superset of `wids-shard-index-v1`.

A manifest has the number of samples of each shard, so that the order of an epoch is known without opening a
shard, and the fingerprint of each index, so that a state saved for other data is rejected.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import xxhash

from tarmac.display import display_url, holds_secret, plural, visible
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
from tarmac.storage.urls import (
    ShardListing,
    Shards,
    ShardUrl,
    allowed_name,
    is_encodable,
    iter_listed,
    manifest_shards,
    parse_manifest,
    read_list,
    some,
)

KIND = "wids-shard-index-v1"
VERSION = 1
MAX_SAMPLES = 1 << 31
"""Samples of one shard that an index can number."""
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a dataset: its URL and the facts that its index has about it."""

    url: str
    samples: int
    size: int | None = None
    index: str | None = None
    """The URL of its sidecar; None if it is beside the shard or not built yet."""
    fingerprint: str | None = None
    extra: dict[str, Any] = field(default_factory=dict, hash=False)
    """Entries of other tools (`md5sum`, `dataset`, …), kept unchanged."""


@dataclass(frozen=True, slots=True, repr=False)
class Manifest(ShardListing):
    """The shards of a dataset, in order, with its name and any further information."""

    shards: list[Shard]
    name: str = ""
    info: Any = None

    @property
    def urls(self) -> list[str]:
        """The URLs of the shards, in order."""
        return [shard.url for shard in self.shards]

    @property
    def samples(self) -> int:
        """The number of samples of all shards."""
        return sum(shard.samples for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """A hash of the content of the shards, independent of their location."""
        digest = xxhash.xxh3_128()
        for shard in self.shards:
            content = shard.fingerprint or f"{os.path.basename(shard.url)}:{shard.size}"
            digest.update(f"{shard.samples} {content}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def __repr__(self) -> str:
        first = f", first {display_url(self.shards[0].url)!r}" if self.shards else ""
        name = f"{self.name!r}, " if self.name else ""
        return f"Manifest({name}{self._counts()}{first})"

    def _counts(self) -> str:
        sizes = [shard.size for shard in self.shards]
        size = "" if None in sizes else f", {plural(sum(size or 0 for size in sizes), 'byte')}"
        return f"{plural(len(self.shards), 'shard')}, {plural(self.samples, 'sample')}{size}"

    def _repr_html_(self) -> str:
        from html import escape

        rows = [
            f"<tr><td>{escape(visible(display_url(shard.url)))}</td><td>{shard.samples}</td>"
            f"<td>{'' if shard.size is None else shard.size}</td></tr>"
            for shard in self.shards[:_SHOWN]
        ]
        if len(self.shards) > _SHOWN:
            rows.append(f"<tr><td colspan=3>and {len(self.shards) - _SHOWN} more</td></tr>")
        title = self._counts()
        caption = f"<caption>{escape(visible(f'{self.name}: {title}' if self.name else title))}</caption>"
        return f"<table>{caption}<tr><th>shard<th>samples<th>bytes</tr>{''.join(rows)}</table>"


@dataclass(frozen=True)
class Inputs:
    """The manifests and shards that were named, in order."""

    parts: Sequence[Manifest | ShardUrl]

    @property
    def manifest(self) -> Manifest | None:
        """The manifest, if one was named and nothing else."""
        first = self.parts[0]
        return first if isinstance(first, Manifest) and len(self.parts) == 1 else None

    @cached_property
    def shards(self) -> list[Shard | ShardUrl]:
        """The shards, with the entries of those that a manifest lists."""
        return [
            shard for part in self.parts for shard in (part.shards if isinstance(part, Manifest) else [part])
        ]

    @cached_property
    def urls(self) -> list[ShardUrl]:
        """The URLs of the shards."""
        return [ShardUrl(shard.url) if isinstance(shard, Shard) else shard for shard in self.shards]


def find_inputs(
    source: Shards,
    storage: StorageOptions = DEFAULT_STORAGE,
    limits: Limits = DEFAULT_LIMITS,
    *,
    allow_exec: bool = True,
) -> Inputs:
    """Expand patterns and lists, once, and read manifests, whose shards need not be indexed again."""

    def opened(manifest: str | ShardListing) -> tuple[Manifest]:
        if isinstance(manifest, Manifest):
            return (manifest,)
        return (read_manifest(str(manifest), storage, limits),)

    return Inputs(some(iter_listed(source, opened, limits=limits, storage=storage, allow_exec=allow_exec)))


def read_manifest(
    url: str, storage: StorageOptions = DEFAULT_STORAGE, limits: Limits = DEFAULT_LIMITS
) -> Manifest:
    """Read a manifest of tarmac or widsindex; relative names in it are relative to the manifest."""
    try:
        content = parse_manifest(read_list(url, limits, storage))
        shards = _parse_shards(content, url)
    except UrlError as error:
        if isinstance(error, FileNotFoundError | PermissionError | UnsafeUrl):
            raise
        raise BadManifest(error.what, url=url, hint=error.hint) from None
    if not shards:
        raise BadManifest("the manifest lists no shards.", url=url)
    return Manifest(shards, str(content.get("name") or ""), content.get("info"))


def existing_shards(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> list[Shard] | None:
    """Return the shards of a manifest that is about to be replaced, or None if there is none.

    Raise UrlError if the URL is another file. A store that denies reading counts as empty.
    """
    if is_stream(url):
        return None
    try:
        text = read_list(url, DEFAULT_LIMITS, storage)
        if not text:
            return None
        return _parse_shards(parse_manifest(text), url)
    except (UrlError, BadManifest) as error:
        if isinstance(error, NotFound | UnsupportedScheme) or (
            isinstance(error, AccessDenied) and not is_local(url)
        ):
            return None
        what = f"the file exists and is not a manifest ({error.what.rstrip('.')})."
        raise UrlError(what, url=url, hint="use another name, or remove the file.") from None


def _parse_shards(content: dict[str, Any], url: str) -> list[Shard]:
    _check_version(content, url)
    resolve = _resolver(url)
    return [_shard(entry, resolve) for entry in manifest_shards(content)]


def _check_version(content: dict[str, Any], url: str) -> None:
    if "shardlist" not in content and "datasets" not in content:
        raise BadManifest(
            "the manifest has no 'shardlist'.", url=url, hint="tarmac index SHARDS -o FILE.json"
        )
    kind, wids, ours = content.get("__kind__", KIND), content.get("wids_version", 1), content.get("tarmac")
    version = ours.get("version") if isinstance(ours, dict) else VERSION
    if (kind, wids, version) != (KIND, 1, VERSION):
        raise BadManifest(
            f"unknown version: expected {KIND!r}, wids 1, tarmac {VERSION}; "
            f"got {kind!r}, wids {wids!r}, tarmac {version!r}.",
            url=url,
            hint="use a newer tarmac, or tarmac index SHARDS -o NEW.json",
        )


_PLAIN = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)
_OURS = frozenset(("url", "nsamples", "filesize", "index", "fingerprint"))


def _resolver(manifest: str) -> Callable[[str], ShardUrl]:
    """Return a function that resolves names in a manifest, with a fast path for plain ones."""
    folder = allowed_name(manifest, "x").removesuffix("x")

    def resolve(name: str) -> ShardUrl:
        return ShardUrl(folder + name) if _PLAIN.fullmatch(name) else allowed_name(manifest, name)

    return resolve


def _shard(entry: dict[str, Any], resolve: Callable[[str], ShardUrl]) -> Shard:
    samples, size = entry.get("nsamples"), entry.get("filesize")
    if type(samples) is not int or not 0 <= samples < MAX_SAMPLES:
        raise UrlError(f"{entry['url']!r}: nsamples must be an integer of 0 or more, got {samples!r}.")
    if size is not None and (type(size) is not int or size < 0):
        raise UrlError(f"{entry['url']!r}: filesize must be an integer of 0 or more, got {size!r}.")
    index, fingerprint = entry.get("index"), entry.get("fingerprint")
    if not isinstance(index, str | None) or not isinstance(fingerprint, str | None):
        raise UrlError(f"{entry['url']!r}: index and fingerprint must be strings.")
    if fingerprint is not None and not is_encodable(fingerprint):
        raise UrlError(f"{entry['url']!r}: the fingerprint contains a lone surrogate.")
    return Shard(
        resolve(entry["url"]),
        samples,
        size,
        None if index is None else resolve(index),
        fingerprint,
        {name: value for name, value in entry.items() if name not in _OURS},
    )


def write_manifest(manifest: Manifest, url: str, storage: StorageOptions = DEFAULT_STORAGE) -> None:
    """Write a manifest atomically; shards beside or below it get relative names."""
    content: dict[str, Any] = {"__kind__": KIND, "wids_version": 1, "name": manifest.name}
    if manifest.info is not None:
        content["info"] = manifest.info
    content["tarmac"] = {
        "version": VERSION,
        "samples": manifest.samples,
        "fingerprint": manifest.fingerprint,
    }
    entries = content["shardlist"] = list(_entries(manifest.shards, url))
    private = any(holds_secret(each["url"]) or holds_secret(each.get("index", "")) for each in entries)
    # Names that are not UTF-8 become JSON escapes, which read back unchanged.
    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    write_all(url, text.encode("utf-8", "backslashreplace"), storage, WriteOptions(private=private))
    if private:
        access = "only its owner can read it (mode 0600)" if is_local(url) else "restrict who can read it"
        text = f"{display_url(url)} contains the credentials in the shards' URLs; {access}."
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
    """Return the name of a shard in a manifest: relative if the shard is below the manifest."""
    if is_local(manifest):
        if not is_local(url):
            return url
        path = os.path.abspath(local_path(url))
        folder = os.path.dirname(os.path.abspath(local_path(manifest)))
        inside = path.startswith(folder.rstrip(os.sep) + os.sep)
        return _unambiguous(os.path.relpath(path, folder)) if inside else path
    if is_local(url):
        raise UrlError(
            "a manifest in a store cannot list local files, which other machines cannot open.",
            url=url,
            hint="write a local manifest, or copy the shards to the store first.",
        )
    folder = manifest.partition("?")[0].rpartition("/")[0] + "/"
    name = url.removeprefix(folder)
    return url if scheme_of(name) or urlsplit(url).query or urlsplit(url).fragment else name


def _unambiguous(name: str) -> str:
    """Return a path that is not mistaken for a URL (`a://b`, `pipe:x`) or standard input (`-`)."""
    return f"./{name}" if ":" in name or name.startswith(("-", "~", "@")) or name[0].isspace() else name
