"""List samples: their keys, and the fields with their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from tarmac.samples.reader import read
from tarmac.storage import StorageOptions
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.tar import TarOptions
from tarmac.tar.reader import DEFAULT_OPTIONS
from tarmac.urls import Shards

__all__ = ["SampleLine", "show"]


@dataclass(frozen=True, slots=True)
class SampleLine:
    """One sample as a listing shows it."""

    key: str
    url: str
    sizes: dict[str, int]


def show(
    shards: Shards,
    *,
    count: int | None = None,
    tar: TarOptions = DEFAULT_OPTIONS,
    storage: StorageOptions = DEFAULT_STORAGE,
) -> Iterator[SampleLine]:
    """Yield the first `count` samples, or all of them."""
    for sample in islice(read(shards, tar=tar, storage=storage), count):
        key, url = sample.pop("__key__"), sample.pop("__url__")
        yield SampleLine(key, url, {name: len(value) for name, value in sample.items()})
