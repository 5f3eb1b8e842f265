"""Which of the files and objects that a job makes are there, and whether they are still the same."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tarmac.errors import AccessDenied, NotFound, UnsupportedScheme
from tarmac.indexing.marks import digest_at
from tarmac.runtime.threads import in_threads
from tarmac.storage import StorageOptions, is_local, stat
from tarmac.storage.local import LocalSource, local_path
from tarmac.storage.types import DEFAULT_STORAGE

__all__ = ["marks_of", "sizes_there", "UNTOLD"]

REQUESTS = 16
"""Questions to a store at the same time."""
SPOTS, SPOT = 16, 4096
"""How many places of a file are looked at to know it again, and how many bytes there."""
UNTOLD = -1
"""The size of what may or may not be there: whoever may write need not be allowed to look."""


def sizes_there(urls: Iterable[str], storage: StorageOptions = DEFAULT_STORAGE) -> dict[str, int]:
    """The sizes of those that are there."""

    def size(url: str) -> int | None:
        try:
            return stat(url, storage).size
        except NotFound:
            return None
        except (AccessDenied, UnsupportedScheme):
            return UNTOLD

    wanted = list(urls)
    found = map(size, wanted) if all(map(is_local, wanted)) else in_threads(size, wanted, REQUESTS)
    return {url: known for url, known in zip(wanted, found, strict=True) if known is not None}


def marks_of(urls: Iterable[str]) -> dict[str, str]:
    """What tells a file from another of the same size: a digest of its beginning and of some places in it.

    Files that are moved or copied keep it, unlike their times.
    """
    return {url: _mark(local_path(url)) for url in urls if is_local(url) and os.path.isfile(local_path(url))}


def _mark(path: str) -> str:
    size = os.path.getsize(path)
    places = [size * number // SPOTS for number in range(SPOTS)]
    with LocalSource(path) as source:
        return digest_at(source.read_at, [(place, place + SPOT) for place in places])
