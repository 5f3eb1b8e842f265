"""What the user wrote, to a list of shard URLs.

Accepted: a string, a path, or any iterable of those; `a::b`; braces `{000..999}` and `{a,b}`; local and
remote globs; `~`; `${X}` (the variable `WDS_X`); `-`; `@list.txt`; a shardspec in YAML; a manifest in JSON.

A local name that exists is taken literally, whatever characters it contains. Lists, shardspecs and
manifests are data, not code: a `pipe:` URL inside one is refused, and one that was itself fetched from
a remote store may name no files of this machine.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any
from urllib.parse import urljoin

from tarmac import environment
from tarmac.errors import NotFound, TooManyShards, UnsafeUrl, UrlError
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.storage import StorageOptions, is_local, open_read, scheme_of
from tarmac.storage.types import DEFAULT_STORAGE

__all__ = ["expand", "iter_urls", "Shards"]

Shards = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_RANGE = re.compile(r"\{(?P<first>-?\d+)\.\.(?P<last>-?\d+)(?:\.\.(?P<step>\d+))?\}")
_GLOB = re.compile(r"[*?\[]")
_LISTABLE = frozenset(("s3", "s3a", "gs", "az", "abfs", "abfss"))


def expand(
    shards: Shards, *, limits: Limits = DEFAULT_LIMITS, options: StorageOptions = DEFAULT_STORAGE
) -> list[str]:
    """Return the URLs that `shards` stands for; at least one, or an error says why there is none."""
    urls = list(iter_urls(shards, limits=limits, options=options))
    if not urls:
        raise NotFound(
            "no shards were given.", hint="a path, a pattern like 'train-{000..009}.tar', or a list."
        )
    return urls


def iter_urls(
    shards: Shards, *, limits: Limits = DEFAULT_LIMITS, options: StorageOptions = DEFAULT_STORAGE
) -> Iterator[str]:
    """Yield the URLs one by one, so that a pattern for a million shards costs nothing up front."""
    count = 0
    for spec in _specs(shards):
        for url in _expand_one(spec, limits, options):
            count += 1
            if count > limits.shards:
                raise TooManyShards(
                    f"this stands for more than {limits.shards} shards.",
                    url=spec,
                    hint="raise Limits.shards.",
                )
            yield url


def _specs(shards: Shards) -> Iterator[str]:
    if isinstance(shards, str | os.PathLike):
        yield os.fspath(shards)
        return
    if isinstance(shards, bytes | dict) or not isinstance(shards, Iterable):
        raise UrlError(
            f"shards must be a string, a path or an iterable of those, got {type(shards).__name__}."
        )
    for item in shards:
        if not isinstance(item, str | os.PathLike):
            raise UrlError(f"a shard must be a string or a path, got {item!r}.")
        yield os.fspath(item)


def _expand_one(spec: str, limits: Limits, options: StorageOptions) -> Iterator[str]:
    if not spec:
        raise UrlError("an empty string names no shard.")
    if is_local(spec) and os.path.lexists(_home(spec)) and not spec.startswith("@"):
        yield from _described(_home(spec), limits, options)
        return
    if "::" in spec:
        for part in spec.split("::"):
            yield from _expand_one(part, limits, options)
        return
    for url in _braces(_substituted(spec), limits):
        if url.startswith("@"):
            yield from _listed(url[1:], _lines, limits, options)
        elif scheme_of(url) == "pipe":
            yield url
        else:
            yield from _globbed(_home(url) if is_local(url) else url, limits, options)


def _home(url: str) -> str:
    return os.path.expanduser(url) if url.startswith("~") else url


def _substituted(spec: str) -> str:
    """Replace `${X}` by the variable WDS_X; in a command, variables that are not set are the shell's."""

    def value(match: re.Match[str]) -> str:
        found = environment.substitution(match[1])
        if found is None:
            if spec.startswith("pipe:"):
                return match[0]
            raise UrlError(f"${{{match[1]}}} needs the environment variable WDS_{match[1]}.", url=spec)
        return found

    return _VARIABLE.sub(value, spec)


def _braces(spec: str, limits: Limits) -> Iterator[str]:
    """Expand braces. Number ranges are walked, not listed: they are what stands for a million shards."""
    if "{" not in spec:
        yield spec
        return
    match = next((m for m in _RANGE.finditer(spec) if _depth(spec, m.start()) == 0), None)
    if match is None:
        yield from _small_braces(spec, limits)
        return
    first, last, step = match["first"], match["last"], int(match["step"] or 1) or 1
    low, high = int(first), int(last)
    if abs(high - low) // step >= limits.shards:
        raise _too_many(spec, limits)
    width = max(len(first), len(last)) if _zero_padded(first) or _zero_padded(last) else 0
    numbers = range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
    for head in _small_braces(spec[: match.start()], limits):
        for number in numbers:
            for tail in _braces(spec[match.end() :], limits):
                yield f"{head}{number:0{width}d}{tail}"


def _small_braces(spec: str, limits: Limits) -> list[str]:
    if "{" not in spec:
        return [spec]
    import bracex

    try:
        return bracex.expand(spec, keep_escapes=True, limit=limits.shards)
    except bracex.ExpansionLimitException:
        raise _too_many(spec, limits) from None


def _too_many(spec: str, limits: Limits) -> TooManyShards:
    return TooManyShards(
        f"the braces stand for more than {limits.shards} shards.", url=spec, hint="raise Limits.shards."
    )


def _depth(spec: str, position: int) -> int:
    return spec.count("{", 0, position) - spec.count("}", 0, position)


def _zero_padded(number: str) -> bool:
    digits = number.lstrip("-")
    return len(digits) > 1 and digits.startswith("0")


def _globbed(url: str, limits: Limits, options: StorageOptions) -> Iterator[str]:
    if not _GLOB.search(url) or (is_local(url) and os.path.lexists(url)):
        yield from _described(url, limits, options)
        return
    scheme = scheme_of(url)
    if is_local(url):
        found = sorted(glob.glob(url.removeprefix("file:"), recursive=True))
    elif scheme in _LISTABLE:
        from tarmac.storage.objects import list_objects

        fixed = _GLOB.split(url, maxsplit=1)[0].rpartition("/")[0]
        pattern = re.compile(_glob_regex(url))
        found = [name for name in list_objects(f"{fixed}/", options) if pattern.fullmatch(name)]
    else:
        yield url  # web servers cannot be listed, and `?` is part of their URLs
        return
    if not found:
        raise NotFound("no file matches this pattern.", url=url)
    yield from found


def _glob_regex(pattern: str) -> str:
    """Translate a glob where `*` stays within a directory and `**` does not."""
    parts = pattern.split("**")
    return ".*".join(fnmatch.translate(part).removesuffix(r"\Z").replace(".*", "[^/]*") for part in parts)


def _described(url: str, limits: Limits, options: StorageOptions) -> Iterator[str]:
    """Replace a shardspec or manifest by the shards it lists; anything else is a shard itself."""
    name = url.partition("?")[0].lower() if not is_local(url) else url.lower()
    if name.endswith((".yaml", ".yml")):
        yield from _listed(url, _shardspec, limits, options)
    elif name.endswith(".json"):
        yield from _listed(url, _manifest, limits, options)
    else:
        yield url


def _listed(url: str, parse: Any, limits: Limits, options: StorageOptions) -> Iterator[str]:
    """Read a file that lists shards, resolve relative names against it, and keep data from acting as code."""
    with open_read(url, options) as source:
        text = bytearray()
        while chunk := source.read(1 << 20):
            text += chunk
            if len(text) > limits.list_bytes:
                raise TooManyShards(f"the list is larger than {limits.list_bytes} bytes.", url=url)
    try:
        names = list(parse(text.decode("utf-8"), limits))
    except UnicodeDecodeError:
        raise UrlError("the list is not text in UTF-8.", url=url) from None
    except UrlError as error:
        error.at(url=url)
        raise
    for name in names:
        if scheme_of(name) in ("pipe", "-"):
            raise UnsafeUrl(
                f"a file lists {name[:60]!r}; commands run only when code asks for them.", url=url
            )
        resolved = _relative_to(url, name)
        if is_local(resolved) and not is_local(url):
            raise UnsafeUrl(f"a remote file lists the local file {name[:60]!r}.", url=url)
        yield from _globbed(resolved, limits, options) if is_local(resolved) else (resolved,)


def _relative_to(base: str, name: str) -> str:
    if scheme_of(name):
        return name
    if is_local(base):
        return os.path.join(os.path.dirname(base.removeprefix("file://")), _home(name))
    if scheme_of(base) in ("http", "https"):
        return urljoin(base, name)
    if PurePath(name).is_absolute():
        return name
    return f"{base.rpartition('/')[0]}/{name}"


def _lines(text: str, limits: Limits) -> Iterator[str]:
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            yield from _braces(line, limits)


def _shardspec(text: str, limits: Limits) -> Iterator[str]:
    """All shards of a shardspec: `prefix`, and `datasets` with `shards` as a pattern or a list."""
    import yaml

    try:
        spec = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UrlError(f"this is not YAML: {' '.join(str(error).split())[:200]}.") from None
    datasets = spec.get("datasets") if isinstance(spec, dict) else None
    if not isinstance(datasets, list):
        raise UrlError("a shardspec needs a list under `datasets`.")
    prefix = spec.get("prefix", "")
    for dataset in datasets:
        shards = dataset.get("shards") if isinstance(dataset, dict) else None
        patterns = [shards] if isinstance(shards, str) else shards
        if not isinstance(patterns, list) or not all(isinstance(item, str) for item in patterns):
            raise UrlError("each dataset of a shardspec needs `shards`: a pattern or a list of patterns.")
        for pattern in patterns:
            yield from _braces(os.path.expandvars(f"{prefix}{pattern}"), limits)


def _manifest(text: str, _limits: Limits) -> Iterator[str]:
    """All shards of a manifest (`wids-shard-index-v1`)."""
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UrlError(f"this is not JSON: {error}.") from None
    shards = manifest.get("shardlist") if isinstance(manifest, dict) else None
    if not isinstance(shards, list) or not all(
        isinstance(s, dict) and isinstance(s.get("url"), str) for s in shards
    ):
        raise UrlError("a manifest needs a `shardlist` whose entries have a `url`.")
    base = manifest.get("base", "")
    for shard in shards:
        yield f"{base.rstrip('/')}/{shard['url']}" if base and not scheme_of(shard["url"]) else shard["url"]
