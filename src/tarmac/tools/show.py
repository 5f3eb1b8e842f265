"""List samples: their keys, and the fields with their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tarmac.errors import UrlError
from tarmac.index.manifest import read_manifest
from tarmac.pipeline.dataset import Dataset
from tarmac.samples.reader import read
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar import TarOptions
from tarmac.tar.reader import DEFAULT_OPTIONS
from tarmac.urls import Shards

__all__ = ["describe", "Description", "SampleLine", "show", "show_at"]


@dataclass(frozen=True, slots=True)
class SampleLine:
    """One sample as a listing shows it."""

    key: str
    url: str
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Description:
    """What a manifest says of a dataset as a whole."""

    name: str
    shards: int
    samples: int
    size: int
    fingerprint: str
    info: Any


def describe(manifest: str, *, storage: StorageOptions = DEFAULT_STORAGE) -> Description:
    """Say what is in a dataset, from its manifest alone."""
    found = read_manifest(manifest, storage)
    size = sum(shard.size or 0 for shard in found.shards)
    return Description(found.name, len(found.shards), found.samples, size, found.fingerprint, found.info)


def show_at(
    shards: Shards, numbers: Iterable[int], *, storage: StorageOptions = DEFAULT_STORAGE
) -> Iterator[SampleLine]:
    """Yield samples by number, through the index; negative numbers count from the end."""
    dataset = Dataset(shards, storage=storage)
    for number in numbers:
        try:
            yield _line(dataset[number])
        except IndexError as error:
            raise UrlError(f"{error}.") from None


def _line(sample: dict[str, Any]) -> SampleLine:
    key, url = sample.pop("__key__"), sample.pop("__url__")
    return SampleLine(key, url, {name: len(value) for name, value in sample.items()})


def show(
    shards: Shards,
    *,
    count: int | None = None,
    tar: TarOptions = DEFAULT_OPTIONS,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> Iterator[SampleLine]:
    """Yield the first `count` samples, or all of them."""
    for sample in islice(read(shards, tar=tar, storage=storage), count):
        yield _line(sample)
