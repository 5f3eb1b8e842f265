"""Find out which outputs of a job exist, and whether they are unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tarmac.errors import AccessDenied, NotFound, UnsupportedScheme
from tarmac.indexing.sampled_digests import digest_at
from tarmac.runtime.lookahead import in_threads
from tarmac.storage import StorageOptions, is_local, stat
from tarmac.storage.local import LocalSource, local_path
from tarmac.storage.types import DEFAULT_STORAGE

REQUESTS = 16
"""Concurrent requests to a store."""
SPANS, SPAN_BYTES = 16, 4096
"""Number and size of the spans of a file that its sampled digest covers."""
UNKNOWN_SIZE = -1
"""The size of an object that may exist: credentials that can write cannot always read."""


def existing_sizes(urls: Iterable[str], storage: StorageOptions = DEFAULT_STORAGE) -> dict[str, int]:
    """Return the size of each file or object that exists."""

    def size(url: str) -> int | None:
        try:
            return stat(url, storage).size
        except NotFound:
            return None
        except (AccessDenied, UnsupportedScheme):
            return UNKNOWN_SIZE

    urls = list(urls)
    sizes = map(size, urls) if all(map(is_local, urls)) else in_threads(size, urls, REQUESTS)
    return {url: known for url, known in zip(urls, sizes, strict=True) if known is not None}


def sampled_digests(urls: Iterable[str]) -> dict[str, str]:
    """Return a digest of evenly spaced spans of each local file that exists.

    It distinguishes files of the same size and, unlike times, survives moving and copying.
    """
    return {
        url: _digest(local_path(url)) for url in urls if is_local(url) and os.path.isfile(local_path(url))
    }


def _digest(path: str) -> str:
    size = os.path.getsize(path)
    starts = [size * number // SPANS for number in range(SPANS)]
    with LocalSource(path) as source:
        return digest_at(source.read_at, [(start, start + SPAN_BYTES) for start in starts])
