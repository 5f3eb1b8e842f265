"""`webdataset.cache`: shards kept in a directory."""

from __future__ import annotations

from tarmac import environment
from tarmac.compat.filecache import (
    FileCache,
    LRUCleanup,
    StreamingOpen,
    check_tar_format,
    download,
    magic_filetype,
    url_to_cache_name,
)
from tarmac.compat.filecache import magic_filetype as get_filetype
from tarmac.compat.gopen import pipe_cleaner
from tarmac.storage import is_local as islocal

__all__ = [
    "check_tar_format",
    "default_cache_dir",
    "default_cache_size",
    "download",
    "environment",
    "FileCache",
    "get_filetype",
    "islocal",
    "LRUCleanup",
    "magic_filetype",
    "pipe_cleaner",
    "StreamingOpen",
    "url_to_cache_name",
]

default_cache_dir = environment.cache_dir() or "./_cache"
default_cache_size = float(environment.cache_size()) if environment.cache_size() >= 0 else 1e18
