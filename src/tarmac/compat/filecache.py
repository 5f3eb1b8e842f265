"""Openers of shards: as streams, or through a directory of downloads; and what looks after directories."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tarmac import environment
from tarmac.compat.gopen import ReadFile, gopen
from tarmac.compat.opening import each_opened
from tarmac.display import display_url
from tarmac.errors import NotATar
from tarmac.steps.handlers import Handler, reraise_exception
from tarmac.storage import Cache, is_local, open_read
from tarmac.storage.local import LocalSource, local_path

__all__ = [
    "FileCache",
    "LRUCleanup",
    "StreamingOpen",
    "check_tar_format",
    "download",
    "last_used",
    "magic_filetype",
    "url_to_cache_name",
]

_log = logging.getLogger("tarmac")

_NAMED_BY_PATH = frozenset(("", "file", "http", "https", "ftp", "ftps", "gs", "s3", "ais"))
_KINDS = {
    b"\x1f\x8b": "gzip compressed data",
    b"BZh": "bzip2 compressed data",
    b"\xfd7zXZ": "XZ compressed data",
    b"(\xb5/\xfd": "Zstandard compressed data",
}


class StreamingOpen:
    """Open shards where they are; for local ones `local_path` says where."""

    def __init__(self, verbose: bool = False, handler: Handler = reraise_exception) -> None:
        self.verbose, self.handler = verbose, handler

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return each_opened(urls, self.handler, self._opened)

    def _opened(self, url: str) -> dict[str, Any]:
        if self.verbose:
            _log.info("reading %s", display_url(url))
        return {"stream": gopen(url)} | ({"local_path": local_path(url)} if is_local(url) else {})


def url_to_cache_name(url: str, ndir: int = 0) -> str:
    """Make a readable file name of a URL: the last part of its path, or the last and `ndir` before it."""
    parts = urlsplit(url)
    if parts.scheme in _NAMED_BY_PATH:
        return "/".join(parts.path.lstrip("/").split("/")[-1 - ndir :])
    return quote(url, safe="_+{}*,-")[-128:]


def magic_filetype(fname: str) -> str:
    """Say what kind of file this is, from its first bytes."""
    with open(fname, "rb") as file:
        head = file.read(512)
    kind = next((what for mark, what in _KINDS.items() if head.startswith(mark)), "data")
    if head[257:262] == b"ustar" or (head and not head.strip(b"\0")):
        kind = "POSIX tar archive"
    return f"{fname}: {kind}"


def check_tar_format(fname: str) -> bool:
    """Whether a file begins as a tar archive does, compressed or not."""
    return not magic_filetype(fname).endswith(": data")


class FileCache:
    """Open shards through a directory of downloads, which other processes may use at the same time.

    `url_to_name` makes the readable part of an entry's name; entries of different URLs never meet. An entry
    that `validator(path)` refuses is removed and is an error. The directory stays below `cache_size` bytes,
    if that is positive; every `cache_cleanup_interval` seconds what killed downloads left is removed.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        url_to_name: Callable[[str], str] = url_to_cache_name,
        verbose: bool = False,
        validator: Callable[[str], bool] | None = check_tar_format,
        handler: Handler = reraise_exception,
        cache_size: int = -1,
        cache_cleanup_interval: float = 30,
    ) -> None:
        self.cache_dir = cache_dir or environment.cache_dir() or "./_cache"
        self.url_to_name, self.validator, self.handler = url_to_name, validator, handler
        self.verbose, self.interval = verbose, cache_cleanup_interval
        self.cache = Cache(
            self.cache_dir,
            max_bytes=int(cache_size) if cache_size > 0 else None,
            readable=url_to_name,
            check=None,  # the validator knows which files are wanted
        )
        self._cleaned = -float("inf")

    def get_file(self, url: str) -> str:
        """Return the path of a shard in the directory, downloading it if need be."""
        opened = self._opened(url)
        opened["stream"].close()
        if "local_path" not in opened:
            raise OSError(f"{self.cache_dir}: {url_to_cache_name(url)} cannot be kept here")
        path: str = opened["local_path"]
        return path

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return each_opened(urls, self.handler, self._opened)

    def _opened(self, url: str) -> dict[str, Any]:
        if is_local(url):
            return {"stream": gopen(url), "local_path": local_path(url)}
        self._clean()
        entry = self.cache.path_of(url)
        if self.verbose and not entry.exists():
            _log.info("downloading %s to %s", display_url(url), entry)
        source = self.cache.open_read(url)
        if not isinstance(source, LocalSource):  # larger than the directory may become: streamed
            return {"stream": ReadFile(source)}
        if self.validator is not None and not self.validator(str(entry)):
            error = NotATar("the validator of the cache refuses this file.", url=url)
            source.blame(error)
            source.close()
            raise error
        return {"stream": ReadFile(source), "local_path": str(entry)}

    def _clean(self) -> None:
        if time.monotonic() - self._cleaned >= self.interval:
            with contextlib.suppress(OSError):  # a directory of another user, who looks after it
                self.cache.clean()
            self._cleaned = time.monotonic()


def last_used(path: str | os.PathLike[str]) -> float:
    """When a file was last read or written."""
    found = os.stat(path)
    return max(found.st_atime, found.st_mtime)


class LRUCleanup:
    """Keep a directory of files below `cache_size` bytes by removing those first for which `keyfn` is least.

    At most once in `interval` seconds (None: each time). Hidden files and directories, where downloads are
    under way, are left alone; a directory of `FileCache` or `WebDataset(cache_dir=…)` looks after itself.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int = 10**12,
        keyfn: Callable[[str], float] = last_used,
        verbose: bool = False,
        interval: float | None = 30,
    ) -> None:
        self.cache_dir, self.cache_size, self.keyfn = cache_dir, cache_size, keyfn
        self.verbose, self.interval = verbose, interval
        self.last_run = -float("inf")

    def set_cache_dir(self, cache_dir: str | os.PathLike[str]) -> None:
        """Say which directory."""
        self.cache_dir = cache_dir

    def cleanup(self) -> None:
        """Remove files until the rest fits."""
        if self.cache_dir is None or not os.path.isdir(self.cache_dir):
            return
        if self.interval is not None and time.monotonic() - self.last_run < self.interval:
            return
        self.last_run = time.monotonic()
        if (Path(self.cache_dir) / ".tarmac").is_dir():
            Cache(self.cache_dir, max_bytes=max(int(self.cache_size), 1)).clean()
            return
        files = []
        for path in _visible_files(os.fspath(self.cache_dir)):
            with contextlib.suppress(OSError):  # another process may have removed it
                files.append((self.keyfn(path), os.path.getsize(path), path))
        excess = sum(size for _, size, _ in files) - self.cache_size
        for _, size, path in sorted(files):
            if excess <= 0:
                return
            if self.verbose:
                _log.info("removing %s", path)
            with contextlib.suppress(OSError):
                os.remove(path)
                excess -= size


def _visible_files(directory: str) -> Iterator[str]:
    for place, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if not name.startswith(".")]
        yield from (
            os.path.join(place, name)
            for name in names
            if not name.startswith(".") and not re.search(r"\.temp\d+$", name)
        )


def download(
    url: str, dest: str | os.PathLike[str], chunk_size: int = 1 << 20, verbose: bool = False
) -> None:
    """Copy what a URL names to a file, which appears when it is whole."""
    if verbose:
        _log.info("downloading %s to %s", display_url(url), dest)
    with open_read(url) as source, gopen(os.fspath(dest), "wb") as file:
        while chunk := source.read(chunk_size):
            file.write(chunk)
