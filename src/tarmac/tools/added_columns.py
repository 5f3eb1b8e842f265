"""Add columns to the indexes of shards whose values are not in the shards."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from tarmac.errors import AccessDenied, UsageError, WriteError
from tarmac.indexing.build import find_or_make_index
from tarmac.indexing.manifest import Shard
from tarmac.indexing.meta import is_column
from tarmac.indexing.sidecar import Sidecar, open_sidecar, sidecar_url, with_columns, write_sidecar
from tarmac.storage import is_local
from tarmac.storage.urls import ShardUrl
from tarmac.tools.options import Access


def index_to_extend(shard: Shard | ShardUrl, access: Access) -> tuple[Sidecar, list[str]]:
    """Return the index of a shard, which is built if it is missing, and the URLs for it, best first.

    Without a manifest, the index of a local shard goes beside it, where all verbs look for columns.
    """
    if isinstance(shard, Shard):
        url = shard.index or sidecar_url(shard.url)
        return open_sidecar(url, access.storage), [url]
    sidecar, url = find_or_make_index(shard, access.indexing)
    return sidecar, [sidecar_url(shard), url] if is_local(shard) else [url]


def add_columns(
    sidecar: Sidecar, urls: Sequence[str], columns: Mapping[str, Any], access: Access, field: str
) -> None:
    """Write an index to the first URL that is writable, with further columns. Errors name the argument `field`."""
    for name in columns:
        if name in ("", "key", "members") or name in sidecar.fields or is_column(name):
            what = f"{name!r} is a name of what samples hold, so no column can have it."
            raise UsageError(what, field=field, url=urls[-1])
    content = with_columns(sidecar, dict(columns))
    for url in urls[:-1]:
        with contextlib.suppress(WriteError, AccessDenied):
            write_sidecar(url, content, access.storage)
            return
    write_sidecar(urls[-1], content, access.storage)
