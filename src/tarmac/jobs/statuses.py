"""The status of inputs: what a file system or a store reports about them, without reading them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import xxhash

from tarmac.display import display_url
from tarmac.errors import TarmacError
from tarmac.jobs.entries import public_name
from tarmac.jobs.task import Outcome, Status
from tarmac.runtime.lookahead import in_threads
from tarmac.storage import StorageOptions, is_local, is_stream, stat
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE

Statuses: TypeAlias = Mapping[str, Status]
"""The status of each input, by its URL without secrets."""
REQUESTS = 16
"""Concurrent requests to a store."""
_KEPT = 16
"""Inputs whose statuses an outcome keeps; of more, the time of reading tells which have changed since."""
_SHOWN = 3
_FROM, _AT = "read_from", "read_at"
"""Details of an outcome: the statuses of its inputs, and the time before reading in nanoseconds."""
_CTIME = 2


def statuses_of(urls: Iterable[str], storage: StorageOptions = DEFAULT_STORAGE) -> dict[str, Status]:
    """Return the current status of each input: one that changes whenever its bytes may have changed."""

    def status(url: str) -> Status:
        if is_stream(url):
            return []
        if is_local(url):
            return file_status(local_path(url))
        info = stat(url, storage)
        return [info.size, info.version]

    urls = list(urls)
    each = map(status, urls) if all(map(is_local, urls)) else in_threads(status, urls, REQUESTS)
    return dict(zip(map(public_name, urls), each, strict=True))


def file_status(path: str | bytes) -> Status:
    """Return size, modification time, change time and inode of a file; nothing of a missing one."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return []
    return [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino]


def status_fingerprint(statuses: Statuses) -> str:
    """Return a hash of the statuses of inputs; empty without inputs."""
    if not statuses:
        return ""
    lines = "".join(f"{url} {status}\n" for url, status in statuses.items())
    return xxhash.xxh3_64_hexdigest(lines.encode("utf-8", "surrogateescape"))


def new_outcome(statuses: Statuses) -> Outcome:
    """Return the outcome of a unit that is about to read inputs of these statuses."""
    return Outcome(inputs=status_fingerprint(statuses), details=details_of(statuses))


def details_of(statuses: Statuses, at: int | None = None) -> dict[str, Any]:
    """Return what an outcome keeps about the statuses of its inputs; `at` is the time of reading, by default now."""
    if len(statuses) > _KEPT:
        return {_AT: time.time_ns() if at is None else at}
    return {_FROM: {url: list(status) for url, status in statuses.items()}} if statuses else {}


def without_statuses(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of an outcome without what `details_of` added."""
    return {name: value for name, value in details.items() if name not in (_FROM, _AT)}


def changed_inputs(outcome: Outcome, statuses: Statuses) -> list[str]:
    """Return the inputs whose status is not the one that the outcome recorded, as far as it is known."""
    if _AT in outcome.details:
        at = outcome.details[_AT]
        return [url for url, status in statuses.items() if len(status) > _CTIME and status[_CTIME] > at]
    recorded = outcome.details.get(_FROM)
    if not isinstance(recorded, dict):
        return []
    return [url for url in recorded.keys() | statuses.keys() if recorded.get(url) != statuses.get(url)]


def named_inputs(urls: Iterable[str]) -> str:
    """Return the names of inputs for a message: `a.tar, b.tar and 3 more`."""
    names = sorted(map(display_url, urls))
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def changed_files(outcomes: Iterable[Outcome], storage: StorageOptions = DEFAULT_STORAGE) -> list[str]:
    """Return the inputs of these outcomes whose status has changed, as far as it was recorded."""
    recorded: dict[str, Status] = {}
    for outcome in outcomes:
        recorded |= outcome.details.get(_FROM, {})
    current: dict[str, Status] = {}
    for url, status in recorded.items():
        with contextlib.suppress(TarmacError):  # the URL lacks a secret, or the input is gone
            current |= statuses_of([url], storage) if status else {url: status}
    return [url for url, status in recorded.items() if current.get(url, []) != status]
