"""Expand patterns and lists into shard URLs.

Accepted: a string, a path, a `Manifest`, or an iterable of those; `a::b`; braces `{000..999}` and `{a,b}`; local and
remote globs; `~`; `${X}` (the variable `WDS_X`); `-`; `@list.txt`; a shardspec in YAML; a manifest in JSON.

The name of an existing local file is literal, whatever characters it contains. Lists, shardspecs and
manifests are data, not code: they cannot contain `pipe:` URLs, and those that were fetched from a remote
store cannot name local files.

The result has the type `ShardUrl`, which `expand` returns unchanged. So no name from a file can later become a
pattern, a variable, a list or a command.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import Any, TypeVar
from urllib.parse import urljoin

from tarmac import environment
from tarmac.errors import NotFound, TooManyShards, UnsafeUrl, UrlError
from tarmac.limits import DEFAULT_LIMITS, MIB, Limits
from tarmac.storage.braces import expand_braces
from tarmac.storage.local import local_path
from tarmac.storage.schemes import can_list, is_local, open_read, scheme_of, store_of, without_query
from tarmac.storage.store import GLOB
from tarmac.storage.types import DEFAULT_STORAGE, StorageOptions


class ShardListing:
    """The base class of `Manifest`: shards that were listed already."""

    __slots__ = ()

    @property
    def urls(self) -> list[str]:
        """The URLs of the shards, in order."""
        raise NotImplementedError


Shards = str | os.PathLike[str] | ShardListing | Iterable[str | os.PathLike[str] | ShardListing]

Parser = Callable[[str, Limits], Iterator[str]]
T = TypeVar("T")

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SEPARATOR = re.compile(r"::(?![0-9a-fA-F:.%]*\])")  # not the one inside http://[::1]/
_BRACES_IN_SCHEME = re.compile(r"[^/:]*\{[^/]*:")  # {pipe,pipe}:x


class ShardUrl(str):
    """The URL of one shard. It is not a pattern: `expand` returns it unchanged."""

    __slots__ = ()


class _ManifestUrl(str):
    """The URL of a manifest."""

    __slots__ = ()


def expand(
    shards: Shards,
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage: StorageOptions = DEFAULT_STORAGE,
    allow_exec: bool = True,
) -> list[ShardUrl]:
    """Return the shard URLs that a path, pattern, list or manifest expands to; raise if there are none.

    `limits.shards` bounds their number. Without `allow_exec`, `pipe:` URLs raise `UnsafeUrl`.
    """
    return some(iter_urls(shards, limits=limits, storage=storage, allow_exec=allow_exec))


def some(shards: Iterable[T]) -> list[T]:
    """Return the shards as a list; raise if there are none."""
    listed = list(shards)
    if not listed:
        raise NotFound(
            "expected at least one shard.", hint="a path, a pattern like 'train-{000..009}.tar', or a list."
        )
    return listed


def iter_urls(
    shards: Shards,
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage: StorageOptions = DEFAULT_STORAGE,
    allow_exec: bool = True,
) -> Iterator[ShardUrl]:
    """Yield the same URLs as `expand`, one at a time, without building the list."""

    def urls_in(manifest: str | ShardListing) -> Iterator[ShardUrl]:
        if isinstance(manifest, str):
            return _read_shards(manifest, _parse_manifest, limits, storage)
        return map(ShardUrl, manifest.urls)

    return iter_listed(shards, urls_in, limits=limits, storage=storage, allow_exec=allow_exec)


def iter_listed(
    shards: Shards,
    open_manifest: Callable[[str | ShardListing], Iterable[T]],
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage: StorageOptions = DEFAULT_STORAGE,
    allow_exec: bool = True,
) -> Iterator[ShardUrl | T]:
    """Yield the URLs of shards, and what `open_manifest` returns for the URL of a manifest or for a `Manifest`."""
    count = 0
    for spec in _specs(shards):
        for url in _expand_one(spec, limits, storage, allow_exec):
            for item in (url,) if isinstance(url, ShardUrl) else open_manifest(url):
                count += 1
                if not allow_exec and isinstance(item, str):
                    reject_command(item)
                if count > limits.shards:
                    raise TooManyShards(
                        f"this expands to more than {limits.shards} shards.",
                        url=spec if isinstance(spec, str) else None,
                        hint="raise Limits.shards.",
                    )
                yield item


def reject_command(url: str) -> None:
    """Raise if opening the URL would run a command."""
    if scheme_of(url) == "pipe":
        raise UnsafeUrl("this would run a command.", url=url, hint="`allow_exec`, if you trust it.")


def _specs(shards: Shards) -> Iterator[str | ShardListing]:
    if isinstance(shards, str | os.PathLike | ShardListing):
        shards = (shards,)
    if isinstance(shards, bytes | dict) or not isinstance(shards, Iterable):
        what = f"expected shards as a string, a path or an iterable of those, got {type(shards).__name__}."
        raise UrlError(what)
    return (each if isinstance(each, ShardListing) else _text(each) for each in shards)


def _text(item: object) -> str:
    name = os.fspath(item) if isinstance(item, str | os.PathLike) else None
    if not isinstance(name, str):
        raise UrlError(f"expected a shard as a string or a path, got {type(item).__name__}.")
    if not name:
        raise UrlError("expected the name of a shard, got an empty string.")
    if "\0" in name:
        raise UrlError("a name cannot contain a NUL character.", url=name.replace("\0", "\\0"))
    if not is_encodable(name):
        raise UrlError("a name cannot contain a lone surrogate.", url=name)
    return name


def is_encodable(text: str) -> bool:
    """Return whether text can be a name: JSON can contain surrogates that stand for no byte of a file name."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _expand_one(
    spec: str | ShardListing, limits: Limits, storage: StorageOptions, allow_exec: bool
) -> Iterator[ShardUrl | _ManifestUrl | ShardListing]:
    if isinstance(spec, ShardUrl | ShardListing):
        yield spec
        return
    if is_local(spec) and os.path.lexists(local_path(spec)) and not spec.startswith("@"):
        yield from _expand_file(os.path.expanduser(spec), limits, storage)
        return
    parts = _SEPARATOR.split(spec)
    if len(parts) > 1:
        for part in parts:
            yield from _expand_one(_text(part), limits, storage, allow_exec)
        return
    for url in expand_braces(substituted(spec), limits):
        if url.startswith("@"):
            if not allow_exec:
                reject_command(url[1:])
            yield from _read_shards(url[1:], _parse_lines, limits, storage)
        elif scheme_of(url) == "pipe":
            yield ShardUrl(url)
        else:
            for match in expand_glob(os.path.expanduser(url), limits, storage):
                yield from _expand_file(match, limits, storage)


def substituted(spec: str) -> str:
    """Replace `${X}` by the variable WDS_X; in a command, unset variables are left to the shell."""

    def replace(match: re.Match[str]) -> str:
        value = environment.substitution(match[1])
        if value is None:
            if spec.startswith("pipe:"):
                return match[0]
            raise UrlError(f"${{{match[1]}}} needs the environment variable WDS_{match[1]}.", url=spec)
        return value

    return _VARIABLE.sub(replace, spec)


def expand_glob(url: str, limits: Limits, storage: StorageOptions) -> Iterator[ShardUrl]:
    """Yield the files or objects that match a glob, sorted; a URL that is not a glob is yielded unchanged.

    The URLs of stores that cannot be listed are not globs: `?` is part of the URLs of web servers.
    """
    local = is_local(url)
    if not GLOB.search(url) or not can_list(url) or (local and os.path.lexists(local_path(url))):
        yield ShardUrl(url)
        return
    matches: list[str] = []
    for match in store_of(url).glob(url, storage):
        if len(matches) == limits.shards:
            what = f"the pattern matches more than {limits.shards} objects."
            raise TooManyShards(what, url=url, hint="raise Limits.shards.")
        matches.append(_as_path(match) if local else match)
    if not matches:
        raise NotFound("no file matches the pattern.", url=url)
    yield from map(ShardUrl, sorted(matches))


def _as_path(name: str) -> str:
    """Return a path that does not look like a URL: files can have the names `pipe:x` and `-`."""
    return name if not scheme_of(name) and not name.startswith("~") else f"./{name}"


def _expand_file(url: str, limits: Limits, storage: StorageOptions) -> Iterator[ShardUrl | _ManifestUrl]:
    """Yield the shards that a shardspec lists; any other URL is yielded as that of a manifest or a shard."""
    name = without_query(url).lower()
    if name.endswith((".yaml", ".yml")):
        yield from _read_shards(url, _parse_shardspec, limits, storage)
    elif name.endswith(".json"):
        yield _ManifestUrl(url)
    else:
        yield ShardUrl(url)


def _read_shards(url: str, parse: Parser, limits: Limits, storage: StorageOptions) -> Iterator[ShardUrl]:
    """Yield the shards that a file lists; relative names are resolved against it.

    The entries are shards, not further lists, so lists cannot form a loop.
    """
    if not url:
        raise UrlError("expected the name of a list after @.", hint="@shards.txt")
    try:
        text = read_list(url, limits, storage).decode("utf-8")
        for name in parse(text, limits):
            shard = allowed_name(url, name)
            # Lists and shardspecs contain patterns; a manifest contains the names of existing shards.
            yield from (shard,) if parse is _parse_manifest else expand_glob(shard, limits, storage)
    except UnicodeDecodeError:
        raise UrlError("the list is not UTF-8 text.", url=url) from None
    except UrlError as error:
        error.at(url=url)
        raise


def read_list(url: str, limits: Limits, storage: StorageOptions) -> bytes:
    """Return the content of a shard list; raise if it is larger than `Limits.list_bytes`."""
    content = bytearray()
    with open_read(url, storage) as source:
        while chunk := source.read(MIB):
            content += chunk
            if len(content) > limits.list_bytes:
                what = f"the list is larger than {limits.list_bytes} bytes."
                raise TooManyShards(what, url=url, hint="raise Limits.list_bytes.")
    return bytes(content)


def read_keys(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> frozenset[str]:
    """Read a list of keys, one per line."""
    text = read_list(url, DEFAULT_LIMITS, storage).decode("utf-8", "surrogateescape")
    # Python splits lines at other characters, too, such as U+2028, which may be part of a key.
    return frozenset(filter(None, (line.removesuffix("\r") for line in text.split("\n"))))


def allowed_name(base: str, name: str) -> ShardUrl:
    """Resolve a name from a list; raise if it needs privileges that only code has."""
    name = _text(name.strip())
    resolved = _relative_to(base, name)
    # The name of an existing file is literal, also in a plain string.
    if _is_special(name) and not (is_local(resolved) and os.path.lexists(local_path(resolved))):
        raise UnsafeUrl(
            f"the list contains {name[:60]!r}, which would have a special meaning as a pattern.",
            url=base,
            hint="list each shard by itself, without '::' and '${'.",
        )
    check_listed(base, name, resolved)
    return ShardUrl(resolved)


def check_listed(base: str, name: str, resolved: str) -> None:
    """Raise if a name from the list `base` runs a command, or is a local file in a remote list."""
    if "pipe" in (scheme_of(name), scheme_of(resolved)) or "-" in (name, resolved):
        raise UnsafeUrl(f"the list contains {name[:60]!r}; a list cannot run commands.", url=base or None)
    if is_local(resolved) and not is_local(base):
        raise UnsafeUrl(f"the remote list contains the local file {name[:60]!r}.", url=base)


def _is_special(name: str) -> bool:
    """Return whether `expand` would interpret the name of a shard if it were a plain string."""
    parts = _SEPARATOR.split(name)
    return (
        any(scheme_of(part) or "/" in part or part.startswith(("@", "~")) for part in parts[1:])
        or any(_BRACES_IN_SCHEME.match(part) for part in parts)
        or _VARIABLE.search(name) is not None
        or (name.startswith("@") and bool(scheme_of(name[1:])))
    )


def _relative_to(base: str, name: str) -> str:
    if scheme_of(name):
        return name
    if is_local(base):
        return os.path.join(os.path.dirname(local_path(base)), os.path.expanduser(name))
    if scheme_of(base) in ("http", "https"):
        return urljoin(base, name)
    if PurePath(name).is_absolute():
        return name
    return f"{base.rpartition('/')[0]}/{name}"


def _parse_lines(text: str, limits: Limits) -> Iterator[str]:
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            yield from expand_braces(line, limits)


def _parse_shardspec(text: str, limits: Limits) -> Iterator[str]:
    """Yield the shards of a shardspec: `prefix`, and `datasets` with `shards` as a pattern or a list."""
    import yaml

    try:
        spec = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UrlError(f"invalid YAML: {' '.join(str(error).split())[:200]}.") from None
    datasets = spec.get("datasets") if isinstance(spec, dict) else None
    if not isinstance(datasets, list):
        raise UrlError('expected a shardspec with a list in "datasets".')
    prefix = spec.get("prefix") or ""
    for dataset in datasets:
        shards = dataset.get("shards") if isinstance(dataset, dict) else None
        patterns = [shards] if isinstance(shards, str) else shards
        if not isinstance(patterns, list) or not all(isinstance(item, str) for item in patterns):
            raise UrlError('expected a pattern or a list of patterns in "shards" of each dataset.')
        for pattern in patterns:
            # Only WDS_ variables, so that a data file cannot leak secrets from the environment.
            yield from expand_braces(substituted(f"{prefix}{pattern}"), limits)


def _parse_manifest(text: str, _limits: Limits) -> Iterator[str]:
    """Yield the shards of a manifest (`wids-shard-index-v1`)."""
    for shard in manifest_shards(parse_manifest(text)):
        yield shard["url"]


def parse_manifest(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object of a manifest."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UrlError(f"invalid JSON: {error}.") from None
    if not isinstance(manifest, dict):
        raise UrlError('expected a JSON object with a "shardlist".')
    return manifest


def manifest_shards(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the entry of each shard in a manifest and its `datasets`; `base` is prepended to each `url`."""
    base = manifest.get("base") or ""
    if not isinstance(base, str):
        raise UrlError('expected a string as "base" of the manifest.')
    shards, datasets = manifest.get("shardlist"), manifest.get("datasets")
    if datasets is not None:
        if not isinstance(datasets, list):
            raise UrlError('expected a list as "datasets" of the manifest.')
        for dataset in datasets:
            if not isinstance(dataset, dict) or not isinstance(dataset.get("shardlist"), list):
                raise UrlError('expected a "shardlist" in each of the "datasets" of the manifest.')
            yield from manifest_shards({"base": base} | {k: v for k, v in dataset.items() if k != "datasets"})
        if shards is None:
            return
    if not isinstance(shards, list) or not all(
        isinstance(shard, dict) and isinstance(shard.get("url"), str) for shard in shards
    ):
        raise UrlError('expected a manifest with a "shardlist" whose entries have a "url".')
    for shard in shards:
        url = shard["url"]
        yield shard | {"url": f"{base.rstrip('/')}/{url}"} if base and not scheme_of(url) else shard
