"""`webdataset.cache`: open shards directly or through a directory of downloads."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tarmac import environment
from tarmac.compat.webdataset._security import check_url
from tarmac.compat.webdataset.gopen import ReadFile
from tarmac.compat.webdataset.gopen import pipe_cleaner as pipe_cleaner
from tarmac.compat.webdataset.tariterators import gopen, open_each
from tarmac.compat.webdataset.utils import obsolete as obsolete
from tarmac.compat.webdataset.utils import print_message
from tarmac.display import display_url
from tarmac.errors import NotATar
from tarmac.steps.handlers import Handler, reraise_exception
from tarmac.storage import Cache, is_local, open_read
from tarmac.storage.local import LocalSource, local_path

_log = logging.getLogger("tarmac")

islocal = is_local
default_cache_dir: str = environment.cache_dir() or "./_cache"
default_cache_size: float = float(environment.cache_size()) if environment.cache_size() >= 0 else 1e18
verbose_cache = 0
"""Without effect, as in the webdataset library; `verbose` prints downloads."""

_NAMED_BY_PATH = frozenset(("", "file", "http", "https", "ftp", "ftps", "gs", "s3", "ais"))
_MAGIC = {
    b"\x1f\x8b": "gzip compressed data",
    b"BZh": "bzip2 compressed data",
    b"\xfd7zXZ": "XZ compressed data",
    b"(\xb5/\xfd": "Zstandard compressed data",
}


@dataclass(eq=False)
class StreamingOpen:
    """Open shards where they are; `local_path` is set for local shards."""

    verbose: bool = False
    handler: Handler = reraise_exception

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return open_each(urls, self.handler, self._open)

    def _open(self, url: str) -> dict[str, Any]:
        if self.verbose:
            _log.info("reading %s", display_url(url))
        return _open_local(url) if is_local(url) else {"stream": gopen.gopen(url)}


def _open_local(url: str) -> dict[str, Any]:
    """Open a local shard, which secure mode allows here, and not in `gopen`."""
    return {"stream": gopen.open_url(url), "local_path": local_path(url)}


def url_to_cache_name(url: str, ndir: int = 0) -> str:
    """Return a readable file name for a URL: the last part of its path, with `ndir` directories before it."""
    parts = urlsplit(url)
    if parts.scheme in _NAMED_BY_PATH:
        return "/".join(parts.path.lstrip("/").split("/")[-1 - ndir :])
    return quote(url, safe="_+{}*,-")[-128:]


def magic_filetype(fname: str) -> str:
    """Return the type of a file, detected from its first bytes, in the style of `file`."""
    with open(fname, "rb") as file:
        head = file.read(512)
    filetype = next((filetype for magic, filetype in _MAGIC.items() if head.startswith(magic)), "data")
    if head[257:262] == b"ustar" or (head and not head.strip(b"\0")):
        filetype = "POSIX tar archive"
    return f"{fname}: {filetype}"


get_filetype = magic_filetype


def check_tar_format(fname: str) -> bool:
    """Return whether a file starts like a tar archive, compressed or not."""
    return not magic_filetype(fname).endswith(": data")


class FileCache:
    """Open shards through a directory of downloads, which processes may share.

    `url_to_name` makes the readable part of an entry's name; entries of different URLs never collide. An entry that
    `validator(path)` rejects is removed and raises NotATar. The directory stays below `cache_size` bytes if that is
    positive. Every `cache_cleanup_interval` seconds, the remains of killed downloads are removed.
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
        self.cache_dir: str | os.PathLike[str] = cache_dir or environment.cache_dir() or "./_cache"
        self.url_to_name = url_to_name
        self.validator = validator
        self.handler = handler
        self.verbose = verbose
        self.interval = cache_cleanup_interval
        self.cache: Cache = Cache(
            self.cache_dir,
            max_bytes=int(cache_size) if cache_size > 0 else None,
            readable=url_to_name,
            check=None,  # the validator decides what is kept
        )
        self._last_cleanup = -float("inf")

    def get_file(self, url: str) -> str:
        """Return the path of a shard in the directory, after downloading it if necessary."""
        shard = self._open(url)
        shard["stream"].close()
        if "local_path" not in shard:
            raise OSError(f"{self.cache_dir}: {url_to_cache_name(url)} is larger than the cache")
        path: str = shard["local_path"]
        return path

    def __call__(self, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return open_each(urls, self.handler, self._open)

    def _open(self, url: str) -> dict[str, Any]:
        if is_local(url):
            return _open_local(url)
        check_url(url)
        self._clean_up()
        entry = self.cache.path_of(url)
        if self.verbose and not entry.exists():
            print_message(f"# downloading {display_url(url)} to {entry}")
        source = self.cache.open_read(url)
        if not isinstance(source, LocalSource):  # larger than the cache: streamed
            return {"stream": ReadFile(source)}
        if self.validator is not None and not self.validator(str(entry)):
            error = NotATar("the `validator` of the cache rejected the file.", url=url)
            source.blame(error)
            source.close()
            raise error
        return {"stream": ReadFile(source), "local_path": str(entry)}

    def _clean_up(self) -> None:
        if time.monotonic() - self._last_cleanup >= self.interval:
            with contextlib.suppress(OSError):  # the directory may belong to another user
                self.cache.clean()
            self._last_cleanup = time.monotonic()


def last_used(path: str | os.PathLike[str]) -> float:
    """Return when a file was last read or written."""
    stat = os.stat(path)
    return max(stat.st_atime, stat.st_mtime)


@dataclass(eq=False)
class LRUCleanup:
    """Keep a directory below `cache_size` bytes by removing the files with the smallest `keyfn(path)`.

    A cleanup runs at most once in `interval` seconds (None: every time). Hidden files and directories, which may be
    downloads in progress, are kept. The entries of a `FileCache` or `WebDataset(cache_dir=…)` are removed by their
    cache.
    """

    cache_dir: str | os.PathLike[str] | None = None
    cache_size: int = 10**12
    keyfn: Callable[[str], float] = last_used
    verbose: bool = False
    interval: float | None = 30
    last_run: float = field(default=-float("inf"), init=False)

    def set_cache_dir(self, cache_dir: str | os.PathLike[str]) -> None:
        """Set the directory."""
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
        remove_oldest(
            _visible_files(os.fspath(self.cache_dir)), self.cache_size, keyfn=self.keyfn, verbose=self.verbose
        )


def remove_oldest(
    paths: Iterable[str],
    max_bytes: int,
    max_files: int = sys.maxsize,
    *,
    keyfn: Callable[[str], float],
    verbose: bool = False,
) -> None:
    """Remove the files with the smallest `keyfn(path)` until the others fit."""
    files = []
    for path in paths:
        with contextlib.suppress(OSError):  # another process may have removed it
            files.append((keyfn(path), os.path.getsize(path), path))
    excess, surplus = sum(size for _, size, _ in files) - max_bytes, len(files) - max_files
    for _, size, path in sorted(files):
        if excess <= 0 and surplus <= 0:
            return
        if verbose:
            print_message(f"# deleting {path}")
        with contextlib.suppress(OSError):
            os.remove(path)
            excess, surplus = excess - size, surplus - 1


def _visible_files(directory: str) -> Iterator[str]:
    for parent, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if not name.startswith(".")]
        yield from (
            os.path.join(parent, name)
            for name in names
            if not name.startswith(".") and not re.search(r"\.temp\d+$", name)
        )


def download(
    url: str, dest: str | os.PathLike[str], chunk_size: int = 1 << 20, verbose: bool = False
) -> None:
    """Download a URL to a file, which appears when it is complete."""
    if verbose:
        _log.info("downloading %s to %s", display_url(url), dest)
    with open_read(url) as source, gopen.open_url(os.fspath(dest), "wb") as file:
        while chunk := source.read(chunk_size):
            file.write(chunk)
