"""`wids.wids_index`: lists of shards, made and changed."""

from __future__ import annotations

from tarmac.compat.widsindex import (
    AtomicJsonUpdate,
    format_with_suffix,
    main,
    main_create,
    main_info,
    main_sample,
    main_update,
    print_long_info,
    shorten_name,
    urldir,
    urldirbase,
    urlfile,
)

__all__ = [
    "AtomicJsonUpdate",
    "format_with_suffix",
    "main",
    "main_create",
    "main_info",
    "main_sample",
    "main_update",
    "print_long_info",
    "shorten_name",
    "urldir",
    "urldirbase",
    "urlfile",
]
