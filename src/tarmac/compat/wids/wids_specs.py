"""`wids.wids_specs`: lists of shards in JSON."""

from __future__ import annotations

from tarmac.compat.shardlist_spec import (
    check_shards,
    load_dsdesc_and_resolve,
    load_remote_dsdesc_raw,
    rebase_shardlist,
    resolve_dsdesc,
    set_all,
    urldir,
    urlmerge,
)

__all__ = [
    "check_shards",
    "load_dsdesc_and_resolve",
    "load_remote_dsdesc_raw",
    "rebase_shardlist",
    "resolve_dsdesc",
    "set_all",
    "urldir",
    "urlmerge",
]
