"""Which of the files and objects that a job makes are there."""

from __future__ import annotations

from collections.abc import Iterable

from tarmac.errors import AccessDenied, NotFound, UnsupportedScheme
from tarmac.pipeline.threads import in_threads
from tarmac.storage import StorageOptions, is_local, stat
from tarmac.storage.types import DEFAULT_STORAGE

__all__ = ["sizes_there", "UNTOLD"]

REQUESTS = 16
"""Questions to a store at the same time."""
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
