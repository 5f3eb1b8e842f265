"""URL to bytes and back: local files, object stores, web servers, commands, standard streams, a cache."""

from tarmac.storage.cache import Cache
from tarmac.storage.schemes import (
    is_local,
    open_read,
    open_write,
    read_range,
    register_scheme,
    scheme_of,
    stat,
)
from tarmac.storage.security import enforce_security, is_secure
from tarmac.storage.types import ObjectInfo, Sink, Source, StorageOptions, WriteOptions

__all__ = [
    "Cache",
    "enforce_security",
    "is_local",
    "is_secure",
    "ObjectInfo",
    "open_read",
    "open_write",
    "read_range",
    "register_scheme",
    "scheme_of",
    "Sink",
    "Source",
    "stat",
    "StorageOptions",
    "WriteOptions",
]
