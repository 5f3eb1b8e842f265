"""Shard specifications: several datasets, of each all shards, some of them, or draws with replacement."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tarmac import environment
from tarmac.display import display_url, visible
from tarmac.errors import NotFound, UrlError
from tarmac.limits import DEFAULT_LIMITS
from tarmac.runtime.seeds import Seed, make_seed
from tarmac.storage import is_local, scheme_of
from tarmac.storage.braces import expand_braces
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import allowed_name, expand, expand_glob, read_list, substituted
from tarmac.stream.epochs import StreamSource

__all__ = ["MultiShardSample", "ShardSet"]

_log = logging.getLogger("tarmac")
_TOP = frozenset(("prefix", "datasets", "buckets"))
_DATASET = frozenset(("buckets", "name", "shards", "resample", "choose"))


@dataclass(frozen=True, slots=True)
class ShardSet:
    """One dataset of a specification: its shards, and how many of them a pass takes."""

    name: str
    urls: tuple[str, ...]
    resample: int = 0
    """Draw so many with replacement."""
    choose: int = 0
    """Draw so many without replacement."""

    def __post_init__(self) -> None:
        if not self.urls:
            raise NotFound(f"the dataset {self.name!r} has no shards.")
        if self.resample > 0 and self.choose > 0:
            raise UrlError(f"the dataset {self.name!r} has both `resample` and `choose`; give one of them.")
        if self.choose > len(self.urls):
            raise UrlError(
                f"the dataset {self.name!r} has {len(self.urls)} shards, so {self.choose} cannot be chosen.",
                hint="`resample`, which draws with replacement.",
            )

    def draw(self, rng: random.Random) -> list[str]:
        """Return the shards of one pass."""
        if self.resample > 0:
            return rng.choices(self.urls, k=self.resample)
        if self.choose > 0:
            return rng.sample(self.urls, self.choose)
        return list(self.urls)


class MultiShardSample(StreamSource):
    """The shards of several datasets, shuffled together; others in each pass where a dataset says so.

    `spec` is a dictionary or a YAML file: `prefix`, `buckets`, and `datasets` with `shards` (a pattern or a
    list of patterns), `name`, `buckets`, and `choose` or `resample` with a number of shards per pass. A
    shard's URL is prefix + bucket + / + shard, for each of the buckets. What a pass consists of follows
    from `seed` and the number of the pass, so that all ranks and workers agree.
    """

    def __init__(self, spec: str | os.PathLike[str] | Mapping[str, Any], seed: Seed = 0) -> None:
        super().__init__()
        self.seed = seed
        if isinstance(spec, Mapping):
            self.sources = list(_shard_sets(spec, None))
        else:
            self.sources = _read(os.path.expanduser(os.fspath(spec)))
        for source in self.sources:
            _log.info("%s: %d shards", visible(display_url(source.name)), len(source.urls))

    @property
    def urls(self) -> list[str]:
        """The shards of all datasets."""
        return [url for source in self.sources for url in source.urls]

    def shards_of(self, epoch: int) -> list[str]:
        """Return the shards of a pass, in order."""
        rng = random.Random(make_seed("shardspec", self.seed, epoch))
        urls = [url for source in self.sources for url in source.draw(rng)]
        rng.shuffle(urls)
        return urls

    def get_shards_for_epoch(self) -> list[str]:
        """Begin a pass and return its shards, in order."""
        return self.shards_of(self._begin())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"url": url} for url in self.get_shards_for_epoch())


def _read(url: str) -> list[ShardSet]:
    import yaml

    try:
        spec = yaml.safe_load(read_list(url, DEFAULT_LIMITS, DEFAULT_STORAGE).decode("utf-8"))
    except UnicodeDecodeError:
        raise UrlError("the specification is not text in UTF-8.", url=url) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, UrlError):
            raise
        raise UrlError(f"this is not YAML: {' '.join(str(error).split())[:200]}.", url=url) from None
    try:
        return list(_shard_sets(spec, url))
    except UrlError as error:
        error.at(url=url)
        raise


def _shard_sets(spec: object, base: str | None) -> Iterator[ShardSet]:
    """Check a specification, which came from the file `base` or from code, and yield its datasets."""
    top = _fields(spec, _TOP, "a shard specification")
    datasets = top.get("datasets")
    if not isinstance(datasets, list) or not datasets:
        raise UrlError("a shard specification needs a list under `datasets`.")
    prefix = top.get("prefix") or ""
    if not isinstance(prefix, str):
        raise UrlError("the `prefix` of a shard specification must be a string.")
    for number, entry in enumerate(datasets):
        dataset = _fields(entry, _DATASET, f"dataset {number} of a shard specification")
        buckets = _texts(dataset.get("buckets", top.get("buckets")) or [""], "buckets")
        patterns = _texts(dataset.get("shards"), "shards")
        names = [prefix + os.path.join(bucket, pattern) for bucket in buckets for pattern in patterns]
        yield ShardSet(
            str(dataset.get("name") or f"@{buckets[0]}"),
            tuple(url for name in names for url in _expanded(name, base)),
            _number(dataset, "resample"),
            _number(dataset, "choose"),
        )


def _expanded(name: str, base: str | None) -> Iterator[str]:
    """Expand a pattern. One from a file is data: it may run no command and see no secrets."""
    if base is None:
        yield from expand(environment.expandvars(name))
        return
    for url in expand_braces(substituted(name), DEFAULT_LIMITS):
        yield from expand_glob(_resolved(base, url), DEFAULT_LIMITS, DEFAULT_STORAGE)


def _resolved(base: str, name: str) -> str:
    """Resolve a name against the file it is in, or as the webdataset library does, against where we are."""
    url = allowed_name(base, name)
    local = not scheme_of(name) and is_local(base)
    return name if local and not os.path.lexists(url) and os.path.lexists(name) else url


def _fields(value: object, known: frozenset[str], what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UrlError(f"{what} must be a mapping, got {type(value).__name__}.")
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise UrlError(f"{what} has the unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}.")
    return value


def _texts(value: object, what: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise UrlError(f"`{what}` of a shard specification must be a string or a list of strings.")
    return list(texts)


def _number(dataset: Mapping[str, Any], key: str) -> int:
    value = dataset.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise UrlError(f"`{key}` of a dataset must be a whole number, got {value!r}.")
    return value
