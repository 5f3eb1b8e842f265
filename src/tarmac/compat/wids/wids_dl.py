"""`wids.wids_dl`: download files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from tarmac.compat.webdataset.cache import download
from tarmac.storage import scheme_of
from tarmac.storage.locks import FileLock

Handlers = Mapping[str, Callable[[str, str], object]]


def download_file(
    remote: str, local: str, handlers: Handlers = MappingProxyType({}), verbose: bool = False
) -> str:
    """Download a URL to the file `local`, which appears when it is complete. Return `local`.

    `handlers` maps schemes to functions `f(url, path)` that replace the built-in download.
    """
    handler = handlers.get(scheme_of(remote) or "posixpath")
    if handler is None:
        download(remote, local, verbose=verbose)
        return local
    part = f"{local}.part-{os.getpid()}"
    try:
        handler(remote, part)
        os.replace(part, local)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    return local


def download_and_open(
    remote: str,
    local: str,
    mode: str = "rb",
    handlers: Handlers = MappingProxyType({}),
    verbose: bool = False,
) -> IO[Any]:
    """Open the file `local`, after downloading it if it does not exist. Only one process downloads."""
    lock = FileLock(Path(f"{local}.lock"))
    lock.acquire()
    try:
        if not os.path.exists(local):
            download_file(remote, local, handlers, verbose)
        return open(local, mode)
    finally:
        lock.remove()
