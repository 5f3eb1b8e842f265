"""Shard specifications: several datasets, each with all its shards, some of them, or draws with replacement."""

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
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.runtime.seeds import Seed, make_seed
from tarmac.storage import StorageOptions, is_local, scheme_of
from tarmac.storage.braces import expand_braces
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import allowed_name, expand, expand_glob, read_list, substituted
from tarmac.stream.epochs import StreamSource

_log = logging.getLogger("tarmac")
_TOP_KEYS = frozenset(("prefix", "datasets", "buckets"))
_DATASET_KEYS = frozenset(("buckets", "name", "shards", "resample", "choose"))


@dataclass(frozen=True, slots=True)
class SpecDataset:
    """One dataset of a specification: its shards, and how many of them an epoch uses."""

    name: str
    urls: tuple[str, ...]
    resample: int = 0
    """The number of shards to draw with replacement; 0 for no draw."""
    choose: int = 0
    """The number of shards to draw without replacement; 0 for no draw."""

    def __post_init__(self) -> None:
        if not self.urls:
            raise NotFound(f"the dataset {self.name!r} has no shards.")
        if self.resample > 0 and self.choose > 0:
            raise UrlError(f"the dataset {self.name!r} has both `resample` and `choose`.", hint="remove one.")
        if self.choose > len(self.urls):
            raise UrlError(
                f"the dataset {self.name!r} has {len(self.urls)} shards, fewer than `choose`: {self.choose}.",
                hint="use `resample`, which draws with replacement.",
            )

    def draw(self, rng: random.Random) -> list[str]:
        """Return the shards of one epoch."""
        if self.resample > 0:
            return rng.choices(self.urls, k=self.resample)
        if self.choose > 0:
            return rng.sample(self.urls, self.choose)
        return list(self.urls)


class MultiShardSample(StreamSource):
    """The shards of several datasets, shuffled together; a dataset may draw different shards in each epoch.

    `spec` is a dictionary or a YAML file: `prefix`, `buckets`, and `datasets` with `shards` (a pattern or a
    list of patterns), `name`, `buckets`, and `choose` or `resample` with a number of shards per epoch. The URL of
    a shard is prefix + bucket + / + shard, for each of the buckets. The shards of an epoch depend on `seed` and
    the epoch alone, so all ranks and workers agree.
    """

    foreseeable = True

    def __init__(
        self,
        spec: str | os.PathLike[str] | Mapping[str, Any],
        seed: Seed = 0,
        *,
        limits: Limits = DEFAULT_LIMITS,
        storage: StorageOptions = DEFAULT_STORAGE,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.sources: list[SpecDataset] = (
            list(_parse(spec, None, limits, storage))
            if isinstance(spec, Mapping)
            else _read(os.path.expanduser(os.fspath(spec)), limits, storage)
        )
        for source in self.sources:
            _log.info("%s: %d shards", visible(display_url(source.name)), len(source.urls))

    @property
    def urls(self) -> list[str]:
        """The shards of all datasets."""
        return [url for source in self.sources for url in source.urls]

    def get_shards_for_epoch(self) -> list[str]:
        """Begin an epoch and return its shards, in order."""
        rng = random.Random(make_seed("shardspec", self.seed, self._next_epoch().number))
        urls = [url for source in self.sources for url in source.draw(rng)]
        rng.shuffle(urls)
        return urls

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"url": url} for url in self.get_shards_for_epoch())


def _read(url: str, limits: Limits, storage: StorageOptions) -> list[SpecDataset]:
    import yaml

    try:
        spec = yaml.safe_load(read_list(url, limits, storage).decode("utf-8"))
    except UnicodeDecodeError:
        raise UrlError("the specification is not UTF-8 text.", url=url) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, UrlError):
            raise
        raise UrlError(f"invalid YAML: {' '.join(str(error).split())[:200]}.", url=url) from None
    try:
        return list(_parse(spec, url, limits, storage))
    except UrlError as error:
        error.at(url=url)
        raise


def _parse(spec: object, base: str | None, limits: Limits, storage: StorageOptions) -> Iterator[SpecDataset]:
    """Check a specification and yield its datasets. `base` is the file it came from, or None for code."""
    top = _mapping(spec, _TOP_KEYS, "a shard specification")
    datasets = top.get("datasets")
    if not isinstance(datasets, list) or not datasets:
        raise UrlError("a shard specification needs a list under `datasets`.")
    prefix = top.get("prefix") or ""
    if not isinstance(prefix, str):
        raise UrlError("the `prefix` of a shard specification must be a string.")
    for number, entry in enumerate(datasets):
        dataset = _mapping(entry, _DATASET_KEYS, f"dataset {number} of a shard specification")
        buckets = _strings(dataset.get("buckets", top.get("buckets")) or [""], "buckets")
        patterns = _strings(dataset.get("shards"), "shards")
        names = [prefix + os.path.join(bucket, pattern) for bucket in buckets for pattern in patterns]
        yield SpecDataset(
            str(dataset.get("name") or f"@{buckets[0]}"),
            tuple(url for name in names for url in _expand(name, base, limits, storage)),
            _integer(dataset, "resample"),
            _integer(dataset, "choose"),
        )


def _expand(name: str, base: str | None, limits: Limits, storage: StorageOptions) -> Iterator[str]:
    """Expand a pattern. A pattern from a file is data: it cannot run a command or read variables."""
    if base is None:
        yield from expand(environment.expandvars(name), limits=limits, storage=storage)
        return
    for url in expand_braces(substituted(name), limits):
        yield from expand_glob(_resolve(base, url), limits, storage)


def _resolve(base: str, name: str) -> str:
    """Resolve a name relative to its file or, as the webdataset library does, to the working directory."""
    url = allowed_name(base, name)
    local = not scheme_of(name) and is_local(base)
    return name if local and not os.path.lexists(url) and os.path.lexists(name) else url


def _mapping(value: object, known: frozenset[str], what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UrlError(f"{what} must be a mapping, got {type(value).__name__}.")
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        expected = ", ".join(sorted(known))
        raise UrlError(f"{what} has the unknown key {unknown[0]!r}; expected {expected}.")
    return value


def _strings(value: object, what: str) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(text, str) for text in strings):
        raise UrlError(f"`{what}` of a shard specification must be a string or a list of strings.")
    return list(strings)


def _integer(dataset: Mapping[str, Any], key: str) -> int:
    value = dataset.get(key)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise UrlError(f"`{key}` of a dataset must be an integer, got {value!r}.")
    return value
