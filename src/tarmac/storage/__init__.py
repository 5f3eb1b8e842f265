"""URLs to bytes and back: local files, object stores, web servers, commands, standard streams, a cache."""

from tarmac.environment import enforce_security, is_secure
from tarmac.storage.cache import Cache, open_shard
from tarmac.storage.schemes import (
    can_list,
    delete,
    is_local,
    is_stream,
    list_objects,
    location,
    open_read,
    open_write,
    read_all,
    read_range,
    register_scheme,
    scheme_of,
    stat,
    without_query,
    write_all,
)
from tarmac.storage.store import FileSource, FileStore, Store
from tarmac.storage.types import ObjectInfo, Sink, Source, StorageOptions, WriteOptions

__all__ = [
    "Cache",
    "can_list",
    "delete",
    "enforce_security",
    "FileSource",
    "FileStore",
    "is_local",
    "is_secure",
    "is_stream",
    "list_objects",
    "location",
    "ObjectInfo",
    "open_read",
    "open_shard",
    "open_write",
    "read_all",
    "read_range",
    "register_scheme",
    "scheme_of",
    "Sink",
    "Source",
    "stat",
    "StorageOptions",
    "Store",
    "without_query",
    "write_all",
    "WriteOptions",
]
