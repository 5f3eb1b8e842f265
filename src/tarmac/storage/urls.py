"""What the user wrote, to a list of shard URLs.

Accepted: a string, a path, or any iterable of those; `a::b`; braces `{000..999}` and `{a,b}`; local and
remote globs; `~`; `${X}` (the variable `WDS_X`); `-`; `@list.txt`; a shardspec in YAML; a manifest in JSON.

A local name that exists is taken literally, whatever characters it contains. Lists, shardspecs and
manifests are data, not code: a `pipe:` URL inside one is refused, and one that was itself fetched from
a remote store may name no files of this machine.

What comes out is of the type `ShardUrl`. It is final: expanding it again changes nothing, so that no name
from a file can turn into a pattern, a variable, a list or a command on its way.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import Any
from urllib.parse import urljoin

from tarmac import environment
from tarmac.errors import NotFound, TooManyShards, UnsafeUrl, UrlError
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.storage import StorageOptions, is_local, open_read, scheme_of
from tarmac.storage.braces import expand_braces
from tarmac.storage.local import local_path
from tarmac.storage.schemes import LISTABLE
from tarmac.storage.types import DEFAULT_STORAGE

__all__ = [
    "ShardUrl",
    "Shards",
    "allowed_name",
    "expand",
    "expand_glob",
    "iter_urls",
    "manifest_shards",
    "parse_manifest",
    "read_list",
    "substituted",
]

Shards = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

Parser = Callable[[str, Limits], Iterator[str]]

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SEPARATOR = re.compile(r"::(?![0-9a-fA-F:.%]*\])")  # not the one inside http://[::1]/
_BRACES_IN_SCHEME = re.compile(r"[^/:]*\{[^/]*:")  # {pipe,pipe}:x
_GLOB = re.compile(r"[*?\[]")


class ShardUrl(str):
    """The URL of one shard, as it is opened. It is not a pattern: `expand` returns it unchanged."""

    __slots__ = ()


def expand(
    shards: Shards,
    *,
    limits: Limits = DEFAULT_LIMITS,
    options: StorageOptions = DEFAULT_STORAGE,
    commands: bool = True,
) -> list[ShardUrl]:
    """Return the URLs that `shards` stands for; at least one, or an error says why there is none."""
    urls = list(iter_urls(shards, limits=limits, options=options, commands=commands))
    if not urls:
        raise NotFound(
            "no shards were given.", hint="a path, a pattern like 'train-{000..009}.tar', or a list."
        )
    return urls


def iter_urls(
    shards: Shards,
    *,
    limits: Limits = DEFAULT_LIMITS,
    options: StorageOptions = DEFAULT_STORAGE,
    commands: bool = True,
) -> Iterator[ShardUrl]:
    """Yield the URLs one by one, so that a pattern for a million shards costs nothing up front.

    Without `commands`, a URL that would run one is refused, however it was written.
    """
    count = 0
    for spec in _specs(shards):
        for url in _expand_one(spec, limits, options, commands):
            count += 1
            if not commands:
                _refuse_command(url)
            if count > limits.shards:
                raise TooManyShards(
                    f"this stands for more than {limits.shards} shards.",
                    url=spec,
                    hint="raise Limits.shards.",
                )
            yield url


def _refuse_command(url: str) -> None:
    """Raise if opening this URL would run a command."""
    if scheme_of(url) == "pipe":
        raise UnsafeUrl("this would run a command.", url=url, hint="--allow-exec, if you trust it.")


def _specs(shards: Shards) -> Iterator[str]:
    if isinstance(shards, str | os.PathLike):
        yield _text(shards)
        return
    if isinstance(shards, bytes | dict) or not isinstance(shards, Iterable):
        raise UrlError(
            f"shards must be a string, a path or an iterable of those, got {type(shards).__name__}."
        )
    for item in shards:
        yield _text(item)


def _text(item: object) -> str:
    name = os.fspath(item) if isinstance(item, str | os.PathLike) else None
    if not isinstance(name, str):
        raise UrlError(f"a shard must be a string or a path, got {type(item).__name__}.")
    if not name:
        raise UrlError("an empty string names no shard.")
    if "\0" in name:
        raise UrlError("a NUL character is part of no name.", url=name.replace("\0", "\\0"))
    return name


def _expand_one(spec: str, limits: Limits, options: StorageOptions, commands: bool) -> Iterator[ShardUrl]:
    if isinstance(spec, ShardUrl):
        yield spec
        return
    if is_local(spec) and os.path.lexists(local_path(spec)) and not spec.startswith("@"):
        yield from _described(_home(spec), limits, options)
        return
    parts = _SEPARATOR.split(spec)
    if len(parts) > 1:
        for part in parts:
            yield from _expand_one(_text(part), limits, options, commands)
        return
    for url in expand_braces(substituted(spec), limits):
        if url.startswith("@"):
            if not commands:
                _refuse_command(url[1:])
            yield from _listed(url[1:], _lines, limits, options)
        elif scheme_of(url) == "pipe":
            yield ShardUrl(url)
        else:
            for found in expand_glob(_home(url), limits, options):
                yield from _described(found, limits, options)


def _home(url: str) -> str:
    return os.path.expanduser(url) if url.startswith("~") else url


def substituted(spec: str) -> str:
    """Replace `${X}` by the variable WDS_X; in a command, variables that are not set are the shell's."""

    def value(match: re.Match[str]) -> str:
        found = environment.substitution(match[1])
        if found is None:
            if spec.startswith("pipe:"):
                return match[0]
            raise UrlError(f"${{{match[1]}}} needs the environment variable WDS_{match[1]}.", url=spec)
        return found

    return _VARIABLE.sub(value, spec)


def expand_glob(url: str, limits: Limits, options: StorageOptions) -> Iterator[ShardUrl]:
    """Replace a glob by the files or objects it matches; anything else is a name itself."""
    local = is_local(url)
    if not _GLOB.search(url) or (local and os.path.lexists(local_path(url))):
        yield ShardUrl(url)
        return
    if local:
        found = [_as_file(name) for name in sorted(glob.glob(local_path(url), recursive=True))]
    elif scheme_of(url) in LISTABLE:
        from tarmac.storage.objects import list_objects

        scheme, _, place = url.partition("://")
        fixed = _GLOB.split(place, maxsplit=1)[0].rpartition("/")[0]
        if not fixed:
            raise UrlError("the name of a bucket cannot be a pattern.", url=url)
        found = list_objects(f"{scheme}://{fixed}/", _glob_regex(url), limits.shards, options)
    else:
        yield ShardUrl(url)  # web servers cannot be listed, and `?` is part of their URLs
        return
    if not found:
        raise NotFound("no file matches this pattern.", url=url)
    yield from map(ShardUrl, found)


def _as_file(name: str) -> str:
    """Write the name of a file so that it cannot be taken for a URL: files called `pipe:x` and `-` exist."""
    return name if not scheme_of(name) and not name.startswith("~") else f"./{name}"


def _glob_regex(pattern: str) -> str:
    """Translate a glob where `*` and `?` stay within a directory and `**` does not."""
    parts = []
    for match in re.finditer(r"\*\*/?|\*|\?|\[(!?)(\]?[^\]]*)\]|.", pattern, re.DOTALL):
        piece = match[0]
        if piece.startswith("**"):
            parts.append("(?:.*/)?" if piece.endswith("/") else ".*")
        elif piece in "*?":
            parts.append("[^/]*" if piece == "*" else "[^/]")
        elif match[2]:
            members = (
                match[2].replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]").replace("^", r"\^")
            )
            parts.append(f"[^/{members}]" if match[1] else f"[{members}]")
        else:
            parts.append(re.escape(piece))
    return "(?s:" + "".join(parts) + ")"


def _described(url: str, limits: Limits, options: StorageOptions) -> Iterator[ShardUrl]:
    """Replace a shardspec or manifest by the shards it lists; anything else is a shard itself."""
    name = url.partition("?")[0].lower() if not is_local(url) else url.lower()
    if name.endswith((".yaml", ".yml")):
        yield from _listed(url, _shardspec, limits, options)
    elif name.endswith(".json"):
        yield from _listed(url, _manifest, limits, options)
    else:
        yield ShardUrl(url)


def _listed(url: str, parse: Parser, limits: Limits, options: StorageOptions) -> Iterator[ShardUrl]:
    """Read a file that lists shards, resolve relative names against it, and keep data from acting as code.

    What it lists are shards, not further lists, so that no list can lead in a circle.
    """
    if not url:
        raise UrlError("@ needs the name of a list.", hint="@shards.txt")
    try:
        text = read_list(url, limits, options).decode("utf-8")
        for name in parse(text, limits):
            found = allowed_name(url, name)
            # Lists and shardspecs hold patterns. A manifest was made of shards that were there.
            yield from (found,) if parse is _manifest else expand_glob(found, limits, options)
    except UnicodeDecodeError:
        raise UrlError("the list is not text in UTF-8.", url=url) from None
    except UrlError as error:
        error.at(url=url)
        raise


def read_list(url: str, limits: Limits, options: StorageOptions) -> bytes:
    """Return the content of a file that lists shards, up to `Limits.list_bytes`."""
    text = bytearray()
    with open_read(url, options) as source:
        while chunk := source.read(1 << 20):
            text += chunk
            if len(text) > limits.list_bytes:
                raise TooManyShards(f"the list is larger than {limits.list_bytes} bytes.", url=url)
    return bytes(text)


def allowed_name(base: str, name: str) -> ShardUrl:
    """Resolve a name from a list, unless it asks for what only code may ask for."""
    name = _text(name.strip())
    resolved = _relative_to(base, name)
    # A file that exists is taken literally, also from a plain string.
    if _acts(name) and not (is_local(resolved) and os.path.lexists(local_path(resolved))):
        raise UnsafeUrl(
            f"a file lists {name[:60]!r}, which would mean something else as a string of code.",
            url=base,
            hint="list each shard by itself, without '::' and '${'.",
        )
    if "pipe" in (scheme_of(name), scheme_of(resolved)) or "-" in (name, resolved):
        raise UnsafeUrl(f"a file lists {name[:60]!r}; commands run only when code asks for them.", url=base)
    if is_local(resolved) and not is_local(base):
        raise UnsafeUrl(f"a remote file lists the local file {name[:60]!r}.", url=base)
    return ShardUrl(resolved)


def _acts(name: str) -> bool:
    """Whether a name of one shard would be more than that if it were copied into a plain string."""
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
        return os.path.join(os.path.dirname(local_path(base)), _home(name))
    if scheme_of(base) in ("http", "https"):
        return urljoin(base, name)
    if PurePath(name).is_absolute():
        return name
    return f"{base.rpartition('/')[0]}/{name}"


def _lines(text: str, limits: Limits) -> Iterator[str]:
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            yield from expand_braces(line, limits)


def _shardspec(text: str, limits: Limits) -> Iterator[str]:
    """All shards of a shardspec: `prefix`, and `datasets` with `shards` as a pattern or a list."""
    import yaml

    try:
        spec = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UrlError(f"this is not YAML: {' '.join(str(error).split())[:200]}.") from None
    datasets = spec.get("datasets") if isinstance(spec, dict) else None
    if not isinstance(datasets, list):
        raise UrlError("a shardspec needs a list under `datasets`.")
    prefix = spec.get("prefix") or ""
    for dataset in datasets:
        shards = dataset.get("shards") if isinstance(dataset, dict) else None
        patterns = [shards] if isinstance(shards, str) else shards
        if not isinstance(patterns, list) or not all(isinstance(item, str) for item in patterns):
            raise UrlError("each dataset of a shardspec needs `shards`: a pattern or a list of patterns.")
        for pattern in patterns:
            # Only WDS_ variables: a data file must not be able to send this machine's secrets somewhere.
            yield from expand_braces(substituted(f"{prefix}{pattern}"), limits)


def _manifest(text: str, _limits: Limits) -> Iterator[str]:
    """All shards of a manifest (`wids-shard-index-v1`)."""
    for shard in manifest_shards(parse_manifest(text)):
        yield shard["url"]


def parse_manifest(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object that a manifest is."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UrlError(f"this is not JSON: {error}.") from None
    if not isinstance(manifest, dict):
        raise UrlError("a manifest is a JSON object with a `shardlist`.")
    return manifest


def manifest_shards(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a manifest says of each shard, `url` with the `base` before it, `datasets` one by one."""
    base = manifest.get("base") or ""
    if not isinstance(base, str):
        raise UrlError("the `base` of a manifest must be a string.")
    shards, datasets = manifest.get("shardlist"), manifest.get("datasets")
    if datasets is not None:
        if not isinstance(datasets, list):
            raise UrlError("the `datasets` of a manifest must be a list.")
        for dataset in datasets:
            if not isinstance(dataset, dict) or not isinstance(dataset.get("shardlist"), list):
                raise UrlError("each of the `datasets` of a manifest needs a `shardlist` here.")
            yield from manifest_shards({"base": base} | {k: v for k, v in dataset.items() if k != "datasets"})
        if shards is None:
            return
    if not isinstance(shards, list) or not all(
        isinstance(shard, dict) and isinstance(shard.get("url"), str) for shard in shards
    ):
        raise UrlError("a manifest needs a `shardlist` whose entries have a `url`.")
    for shard in shards:
        url = shard["url"]
        yield shard | {"url": f"{base.rstrip('/')}/{url}"} if base and not scheme_of(url) else shard
