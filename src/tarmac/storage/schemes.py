"""From a URL to the leaf that handles it; users register their own schemes here.

Everything that is read or written by its URL comes through here, so this is also where the environment may
send a URL elsewhere (`GOPEN_REWRITE`, `USE_AIS_FOR`).
"""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Callable
from typing import IO, Any, Protocol

from tarmac import environment
from tarmac.errors import ShortRead, TransferError, UnsafeUrl, UnsupportedScheme, UrlError, WriteError
from tarmac.storage.local import local_path
from tarmac.storage.security import is_secure
from tarmac.storage.types import (
    DEFAULT_STORAGE,
    DEFAULT_WRITE,
    ObjectInfo,
    Sink,
    Source,
    StorageOptions,
    WriteOptions,
)

__all__ = [
    "is_local",
    "open_read",
    "open_write",
    "read_range",
    "register_scheme",
    "rewrite_url",
    "scheme_of",
    "stat",
]


class Leaf(Protocol):
    """What each storage module offers."""

    def open_read(self, url: str, options: StorageOptions, /) -> Source: ...
    def open_write(self, url: str, options: StorageOptions, write: WriteOptions, /) -> Sink: ...
    def stat(self, url: str, options: StorageOptions, /) -> ObjectInfo: ...
    def read_range(
        self, url: str, start: int, stop: int, options: StorageOptions, version: str | None, /
    ) -> bytes: ...


LISTABLE = frozenset(("s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure"))
"""Schemes of object stores, where a pattern can be answered by listing."""

_MODULES = (
    dict.fromkeys(("", "file"), "local")
    | dict.fromkeys(("http", "https", *LISTABLE), "objects")
    | {"-": "stdio", "pipe": "command", "hf": "hub", "ais": "aistore"}
)
_registered: dict[str, Leaf] = {}
_WITH_SLASHES = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")


def scheme_of(url: str) -> str:
    """Return the scheme; plain file names, whatever characters they contain, have the scheme ""."""
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
    """Whether the URL names a file on this machine."""
    return scheme_of(url) in ("", "file")


def rewrite_url(url: str) -> str:
    """Return the URL that is opened in place of this one, by the first rule of `GOPEN_REWRITE` that fits.

    A rule fits at the beginning of a URL. It can make no command of anything, and secure mode knows no rules.
    """
    rules = environment.rewrite_rules()
    if not rules or url == "-":
        return url
    if is_secure():
        raise UnsafeUrl("secure mode lets no variable rewrite URLs.", url=url, hint="unset GOPEN_REWRITE.")
    for number, (pattern, replacement) in enumerate(rules, 1):
        try:
            match = re.match(pattern, url)
            found = None if match is None else match.expand(replacement) + url[match.end() :]
        except (re.error, IndexError) as error:
            raise UrlError(f"rule {number} of GOPEN_REWRITE cannot be followed: {error}.", url=url) from None
        if found is not None:
            return _allowed(url, found)
    return url


def _allowed(url: str, found: str) -> str:
    """Refuse what a rule must not make of a URL, which may have come from a list and not from code."""
    if found != url and scheme_of(found) == "pipe":
        raise UnsafeUrl("GOPEN_REWRITE makes a command of it; commands run only when code asks.", url=url)
    if is_local(found) and not is_local(url) and ".." in local_path(found).split("/"):
        raise UnsafeUrl("GOPEN_REWRITE makes a local name of it that leads out of its directory.", url=url)
    return found


def _located(url: str) -> tuple[Leaf, str]:
    """Find what handles a URL, and the URL that it is to handle."""
    url = rewrite_url(url)
    return _leaf(url), url


def _leaf(url: str) -> Leaf:
    scheme = scheme_of(url)
    if scheme in _registered:
        return _registered[scheme]
    module = "aistore" if scheme in environment.aistore_schemes() else _MODULES.get(scheme)
    if module is None:
        known = ", ".join(sorted(name for name in {*_MODULES, *_registered} if len(name) > 1))
        raise UnsupportedScheme(
            f'nothing reads "{scheme}:" URLs; known are {known}.',
            url=url,
            hint="tarmac.register_scheme(name, reader), or a pipe: command.",
        )
    leaf: Leaf = importlib.import_module(f"tarmac.storage.{module}")
    return leaf


def open_read(url: str, options: StorageOptions = DEFAULT_STORAGE) -> Source:
    """Open the bytes behind a URL, to be read from front to back."""
    leaf, url = _located(url)
    return leaf.open_read(url, options)


def open_write(
    url: str, options: StorageOptions = DEFAULT_STORAGE, write: WriteOptions = DEFAULT_WRITE
) -> Sink:
    """Begin writing to a URL; nothing shows under its name until the sink is committed."""
    leaf, url = _located(url)
    return leaf.open_write(url, options, write)


def stat(url: str, options: StorageOptions = DEFAULT_STORAGE) -> ObjectInfo:
    """Return the size of what a URL names, and a version that changes when the bytes do."""
    leaf, url = _located(url)
    return leaf.stat(url, options)


def read_range(
    url: str,
    start: int,
    stop: int,
    options: StorageOptions = DEFAULT_STORAGE,
    version: str | None = None,
) -> bytes:
    """Return the bytes from `start` up to `stop` of what a URL names: all of them, or it raises.

    With the `version` that `stat` returned, an object that was replaced meanwhile is an error.
    """
    if not 0 <= start <= stop:
        raise ValueError(f"a range runs from 0 or later to its end, got {start} to {stop}")
    leaf, url = _located(url)
    data = leaf.read_range(url, start, stop, options, version) if start < stop else b""
    if len(data) != stop - start:
        raise ShortRead(
            f"{len(data)} bytes arrived of the {stop - start} asked for.", url=url, offset=start + len(data)
        )
    return data


def register_scheme(
    name: str,
    reader: Callable[[str], IO[bytes]],
    writer: Callable[[str], IO[bytes]] | None = None,
) -> None:
    """Teach tarmac URLs that begin with `name:`.

    `reader(url)` and `writer(url)` return binary file objects. Registering a name again replaces it,
    also for built-in schemes.
    """
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]+", name):
        raise ValueError(f"a scheme is a name of at least two letters, got {name!r}")
    _registered[name.lower()] = _FileObjects(reader, writer)


class _FileObjects:
    """A leaf made of two functions that open file objects."""

    def __init__(self, reader: Callable[[str], IO[bytes]], writer: Callable[[str], IO[bytes]] | None) -> None:
        self._reader = reader
        self._writer = writer

    def open_read(self, url: str, _options: StorageOptions, /) -> Source:
        return _FileSource(self._reader(url))

    def open_write(self, url: str, _options: StorageOptions, _write: WriteOptions, /) -> Sink:
        if self._writer is None:
            raise UnsupportedScheme(f'"{scheme_of(url)}:" was registered for reading only.', url=url)
        return FileSink(self._writer(url), close=True)

    def stat(self, url: str, _options: StorageOptions, /) -> ObjectInfo:
        with self.open_read(url, _options) as source:
            size = 0
            while chunk := source.read(1 << 20):
                size += len(chunk)
        return ObjectInfo(size, None)

    def read_range(
        self, url: str, start: int, stop: int, _options: StorageOptions, _version: str | None, /
    ) -> bytes:
        file, parts = self._reader(url), []
        try:
            file.seek(start)
            while start < stop and (part := file.read(stop - start)):  # a raw file may give less at a time
                parts.append(part)
                start += len(part)
        except io.UnsupportedOperation:
            raise TransferError("this kind of file can only be read from front to back.", url=url) from None
        finally:
            file.close()
        return b"".join(parts)


class _FileSource(Source):
    """A file object as a source."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int, /) -> bytes:
        return self._file.read(size)

    def close(self) -> None:
        self._file.close()


class FileSink:
    """A file object as a sink: written as it comes, closed at the end if it is ours to close."""

    def __init__(self, file: Any, *, close: bool) -> None:
        self._file = file
        self._close = close

    def write(self, data: bytes, /) -> None:
        """Pass the bytes on, all of them: an unbuffered file may take only some at a time."""
        done = self._file.write(data)
        while isinstance(done, int) and done < len(data):
            if not done:
                raise WriteError("the file object takes no more bytes.")
            data = data[done:]
            done = self._file.write(data)
        if done is None and isinstance(self._file, io.RawIOBase):
            raise WriteError("the file object would block.", hint="a blocking file, or a buffered one.")

    def commit(self) -> None:
        """Flush, and close what was opened for us."""
        try:
            if hasattr(self._file, "flush"):
                self._file.flush()
        finally:
            if self._close:
                self._file.close()

    def abort(self) -> None:
        """End what was opened for us: without a trace if it can, else what was written stays."""
        if self._close:
            getattr(self._file, "abort", self._file.close)()
