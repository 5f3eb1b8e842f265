"""From a URL to the store that handles it.

Every URL that is read or written passes through this module, so the environment can redirect URLs here
(`GOPEN_REWRITE`, `USE_AIS_FOR`).
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import re
from operator import itemgetter
from typing import Any

from tarmac import environment
from tarmac.environment import is_secure
from tarmac.errors import (
    ShortRead,
    TarmacError,
    TooManyShards,
    UnsafeUrl,
    UnsupportedScheme,
    UrlError,
    UsageError,
)
from tarmac.limits import DEFAULT_LIMITS, MIB
from tarmac.runtime.allocator import keep_freed_memory
from tarmac.storage.local import local_path
from tarmac.storage.store import Store
from tarmac.storage.types import (
    DEFAULT_STORAGE,
    DEFAULT_WRITE,
    ObjectInfo,
    Sink,
    Source,
    StorageOptions,
    WriteOptions,
)

_BUILT_IN = {
    "": "local.LocalStore",
    "file": "local.LocalStore",
    "-": "stdio.StandardStreams",
    "pipe": "command.CommandStore",
    "hf": "hub.HubStore",
    "ais": "aistore.AIStore",
    **dict.fromkeys(("http", "https"), "objects.WebStore"),
    **dict.fromkeys(("s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure"), "objects.BucketStore"),
}
"""Modules are imported when a scheme is first used."""
_registered: dict[str, Store] = {}
_WITH_SLASHES = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")


def register_scheme(name: str, store: Store) -> None:
    """Open URLs that begin with `name:` with a store, everywhere in tarmac.

    Registering a name again replaces its store, including built-in ones.
    """
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]+", name):
        raise UsageError(f"expected a scheme of at least two letters, got {name!r}.", field="name")
    if not isinstance(store, Store):
        hint = "tarmac.storage.FileStore(function), for a function that opens file objects."
        raise UsageError(
            f"expected a tarmac.storage.Store, got {type(store).__name__}.", field="store", hint=hint
        )
    _registered[name.lower()] = store


def known_schemes() -> set[str]:
    """Return the built-in and the registered schemes."""
    return {*_BUILT_IN, *_registered}


def scheme_of(url: str) -> str:
    """Return the scheme of a URL. Plain file names have the scheme "", whatever characters they contain."""
    if url == "-":
        return "-"
    if url.startswith(("pipe:", "file:")):
        return url[:4]
    match = _WITH_SLASHES.match(url)
    if match:
        return match[1].lower()
    prefix, colon, _ = url.partition(":")
    return prefix if colon and prefix in _registered else ""


def is_local(url: str) -> bool:
    """Return whether the URL names a file on this machine."""
    return scheme_of(url) in ("", "file")


def location(url: str) -> str:
    """Return the absolute path of a local file, however it is written; any other URL unchanged."""
    return os.path.abspath(local_path(url)) if is_local(url) else url


def without_query(url: str) -> str:
    """Return a URL without its query, and that of a web server without its fragment; a file name unchanged."""
    if is_local(url):
        return url
    path = url.partition("?")[0]
    return path.partition("#")[0] if scheme_of(url) in ("http", "https") else path


def is_stream(url: str) -> bool:
    """Return whether the URL can be read only once, from start to end: standard input or a command."""
    store = _find_store(scheme_of(url))
    return store is not None and store.is_stream


def opens_ahead(url: str) -> bool:
    """Return whether the store of the URL allows to open it before it is read."""
    try:
        return _resolve(url)[0].opens_ahead
    except TarmacError:
        return False  # raised when it is opened


def can_list(url: str) -> bool:
    """Return whether the store of the URL can list its objects."""
    store = _find_store(scheme_of(url))
    return store is not None and store.can_list


def store_of(url: str) -> Store:
    """Return the store for the scheme of a URL."""
    scheme = scheme_of(url)
    store = _find_store(scheme)
    if store is None:
        known = ", ".join(sorted(name for name in known_schemes() if len(name) > 1))
        raise UnsupportedScheme(
            f'unknown scheme "{scheme}:". Known schemes are {known}.',
            url=url,
            hint="tarmac.register_scheme(name, store), or a pipe: command.",
        )
    return store


def _find_store(scheme: str) -> Store | None:
    if scheme in _registered:
        return _registered[scheme]
    return _built_in(_BUILT_IN[scheme]) if scheme in _BUILT_IN else None


@functools.cache
def _built_in(path: str) -> Store:
    module, _, name = path.partition(".")
    store: Store = getattr(importlib.import_module(f"tarmac.storage.{module}"), name)()
    return store


def _resolve(url: str) -> tuple[Store, str]:
    """Return the store that opens a URL, and the URL to open, after the redirections of the environment."""
    url = rewrite_url(url)
    scheme = scheme_of(url)
    if scheme not in _registered and scheme in environment.aistore_schemes():
        return _built_in(_BUILT_IN["ais"]), url
    return store_of(url), url


def rewrite_url(url: str) -> str:
    """Return the URL that is opened in place of this one, according to `GOPEN_REWRITE`.

    The first rule that matches the beginning of the URL applies. A rule cannot produce a command, and secure
    mode accepts no rules.
    """
    rules = environment.rewrite_rules()
    if not rules or url == "-":
        return url
    if is_secure():
        raise UnsafeUrl("secure mode does not rewrite URLs.", url=url, hint="unset GOPEN_REWRITE.")
    for number, (pattern, replacement) in enumerate(rules, 1):
        try:
            match = re.match(pattern, url)
            result = None if match is None else match.expand(replacement) + url[match.end() :]
        except (re.error, IndexError) as error:
            raise UrlError(f"rule {number} of GOPEN_REWRITE is invalid: {error}.", url=url) from None
        if result is not None:
            _check_rewritten(url, result)
            return result
    return url


def _check_rewritten(url: str, result: str) -> None:
    """Raise if a rule turned a URL, which may come from a list and not from code, into something unsafe."""
    if result != url and scheme_of(result) == "pipe":
        raise UnsafeUrl("GOPEN_REWRITE turns it into a command; only code may run commands.", url=url)
    if is_local(result) and not is_local(url) and ".." in local_path(result).split("/"):
        raise UnsafeUrl("GOPEN_REWRITE turns it into a local path outside of its directory.", url=url)


def open_read(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> Source:
    """Open a URL for reading from start to end."""
    keep_freed_memory()
    store, url = _resolve(url)
    return store.open_read(url, storage)


def open_write(
    url: str, storage: StorageOptions = DEFAULT_STORAGE, write: WriteOptions = DEFAULT_WRITE
) -> Sink:
    """Open a URL for writing. Nothing appears under its name until the sink is committed."""
    store, url = _resolve(url)
    return store.open_write(url, storage, write)


def stat(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> ObjectInfo:
    """Return the size of an object, and a version that changes when its bytes change."""
    store, url = _resolve(url)
    return store.stat(url, storage)


def delete(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> None:
    """Delete a file or object; one that does not exist is not an error."""
    store, url = _resolve(url)
    store.delete(url, storage)


def read_range(
    url: str,
    start: int,
    stop: int,
    storage: StorageOptions = DEFAULT_STORAGE,
    version: str | None = None,
) -> bytes:
    """Return the bytes of an object from `start` up to `stop`; raise if any are missing.

    With the `version` that `stat` returned, raise `ObjectChanged` if the object was replaced since.
    """
    return bytes(read_buffer(url, start, stop, storage, version))


def read_buffer(url: str, start: int, stop: int, storage: StorageOptions, version: str | None) -> Any:
    """Return what `read_range` does in any object that has a buffer, which may save a copy."""
    if not 0 <= start <= stop:
        raise UsageError(f"expected 0 <= start <= stop, got {start} and {stop}.", field="start")
    store, url = _resolve(url)
    data = store.read_buffer(url, start, stop, storage, version) if start < stop else b""
    if len(data) != stop - start:
        raise ShortRead(f"expected {stop - start} bytes, got {len(data)}.", url=url, offset=start + len(data))
    return data


def list_objects(
    prefix: str, storage: StorageOptions = DEFAULT_STORAGE, *, max_objects: int = DEFAULT_LIMITS.shards
) -> list[tuple[str, ObjectInfo]]:
    """Return the URL, size and version of every object whose URL begins with `prefix`, sorted by URL."""
    objects = list(itertools.islice(store_of(prefix).list_objects(prefix, storage), max_objects + 1))
    if len(objects) > max_objects:
        raise TooManyShards(f"more than {max_objects} objects have this prefix.", url=prefix)
    return sorted(objects, key=itemgetter(0))


def read_all(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> bytes:
    """Return the whole content of a URL."""
    with open_read(url, storage) as source:
        return b"".join(iter(lambda: source.read(MIB), b""))


def write_all(
    url: str,
    data: bytes,
    storage: StorageOptions = DEFAULT_STORAGE,
    write: WriteOptions = DEFAULT_WRITE,
) -> None:
    """Write the whole content of a URL, or leave it as it was."""
    sink = open_write(url, storage, write)
    try:
        sink.write(data)
    except BaseException:
        sink.abort()
        raise
    sink.commit()
