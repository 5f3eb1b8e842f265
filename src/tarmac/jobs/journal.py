"""Write and read the entries of a generation: what is done, what failed, and what is to be tried again.

Each writer appends to a file of its own, so writers need neither a driver nor locks. A store cannot append: there
each unit has an object. Readers take the union, and of several entries for a unit the latest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tarmac.errors import JobMismatch, NotFound, TarmacError, WriteError
from tarmac.jobs.entries import public_name, to_json
from tarmac.jobs.spelling import AS_SPELT, Spelling, respelt
from tarmac.jobs.task import Outcome, Unit
from tarmac.runtime.lookahead import in_threads
from tarmac.storage import StorageOptions, WriteOptions, can_list, is_local, list_objects, read_all, write_all
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE

REQUESTS = 16
"""Concurrent requests to a store."""
SYNC_SECONDS = 0.5
"""Time between two flushes to disk. An entry that a power failure takes costs a unit to be run again, no more."""
_KINDS = "done", "failed"
"""The prefixes of objects with entries."""
_MAX_FILES = 16
"""Files that a process keeps open: those of its latest jobs."""


def unit_hash(name: str) -> str:
    """Return a file name for a unit."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:24]


@dataclass(frozen=True)
class Journal:
    """The entries of one generation of a job. It is sent to workers, which record what they have done."""

    url: str
    storage: StorageOptions = DEFAULT_STORAGE
    spelling: Spelling = AS_SPELT

    def record(self, unit: Unit, outcome: Outcome) -> None:
        """Store that a unit is done."""
        stored = respelt(outcome, self.spelling.to_ledger)
        self.write(unit.name, to_json(stored) | {"inputs": outcome.inputs or unit.inputs})

    def fail(self, unit: Unit, error: str, *, passing: bool = False) -> None:
        """Store that a unit failed; with an error that is `passing`, the next run tries it again."""
        self.write(unit.name, {"error": error} | ({"passing": True} if passing else {}))

    def retry(self, name: str, failed_at: float = 0.0) -> None:
        """Store that a unit is to be tried again which failed at this time, by the clock of another machine."""
        self.write(name, {"retry": True}, not_before=failed_at + 0.001)

    def close(self) -> None:
        """Close the file of this process."""
        _close(_key(local_path(self.url)) if is_local(self.url) else (0, ""))

    def write(self, name: str, values: dict[str, Any], not_before: float = 0.0) -> None:
        """Store an entry for a unit, with the current time or `not_before`, whichever is later."""
        at = max(round(time.time(), 3), not_before)
        unit = self.spelling.unit_to_ledger(name)
        content = json.dumps({"unit": public_name(unit), **values, "at": at}).encode()
        if is_local(self.url):
            _append(local_path(self.url), content + b"\n")
        else:
            kind = "failed" if "error" in values or "retry" in values else "done"
            url = f"{self.url}/{kind}/{unit_hash(unit)}.json"
            write_all(url, content, self.storage, WriteOptions(overwrite=True))


class Reader:
    """Read the entries of a generation, and later those that were added since."""

    def __init__(self, url: str, storage: StorageOptions = DEFAULT_STORAGE) -> None:
        self._url, self._storage = url, storage
        self._seen: dict[str, Any] = {}
        """What was read of each file or object: its bytes, or its version."""

    def new_entries(self, unit: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the entries that were not yielded before, at least those of one unit."""
        if is_local(self._url):
            return self._from_files()
        if unit is not None:
            return self._of_unit(unit)
        return self._from_objects() if can_list(self._url) else iter(())

    def _of_unit(self, unit: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of a unit without listing all objects, of which there may be many thousands."""
        for kind in _KINDS:
            with contextlib.suppress(NotFound):
                url = f"{self._url}/{kind}/{unit_hash(unit)}.json"
                yield parse_entry(read_all(url, self._storage), url)

    def _from_files(self) -> Iterator[dict[str, Any]]:
        directory = local_path(self._url)
        with contextlib.suppress(FileNotFoundError):
            for item in sorted(os.scandir(directory), key=lambda item: item.name):
                read = self._seen.get(item.name, 0)
                if item.name.endswith(".jsonl") and item.stat().st_size > read:
                    with open(item.path, "rb") as file:
                        file.seek(read)
                        content = file.read()
                    # The last line may be incomplete: it is being written, or its writer was killed.
                    complete = content[: content.rfind(b"\n") + 1]
                    self._seen[item.name] = read + len(complete)
                    for line in complete.splitlines():
                        yield parse_entry(line, item.path)

    def _from_objects(self) -> Iterator[dict[str, Any]]:
        changed = []
        with contextlib.suppress(NotFound):
            for kind in _KINDS:
                for url, info in list_objects(f"{self._url}/{kind}/", self._storage):
                    if self._seen.get(url) != (info.version or info.size):
                        self._seen[url] = info.version or info.size
                        changed.append(url)

        def read(url: str) -> bytes:
            return read_all(url, self._storage)

        for url, content in zip(changed, in_threads(read, changed, REQUESTS), strict=True):
            yield parse_entry(content, url)


def parse_entry(line: bytes, url: str) -> dict[str, Any]:
    """Return an entry; raise JobMismatch if it is damaged."""
    try:
        entry = json.loads(line)
        if not isinstance(entry, dict) or not isinstance(entry.get("unit", ""), str):
            raise ValueError("expected an object with the name of a unit")
    except ValueError as error:
        if isinstance(error, TarmacError):
            raise
        raise JobMismatch(f"the ledger is damaged: {error}.", url=url) from None
    return entry


@dataclass
class _File:
    fd: int
    synced: float = 0.0


_files: dict[tuple[int, str], _File] = {}
"""The open files of this process, by process and directory: a forked process has its own."""
_lock = threading.RLock()
"""Held while a line is written: workers of some engines are threads."""
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def _key(directory: str) -> tuple[int, str]:
    return os.getpid(), os.path.abspath(directory)


def _append(directory: str, line: bytes) -> None:
    """Append a line to the file of this process."""
    key = _key(directory)
    try:
        with _lock:
            file = _files.get(key) or _open(key, directory)
            if os.write(file.fd, line) != len(line):
                raise WriteError("the disk is full.", url=directory)
            if time.monotonic() - file.synced > SYNC_SECONDS:
                os.fsync(file.fd)
                file.synced = time.monotonic()
    except OSError as error:
        _close(key)  # what follows an incomplete line goes to another file
        if isinstance(error, TarmacError):
            raise
        raise WriteError(f"the ledger cannot be written: {error.strerror}.", url=directory) from error


def _open(key: tuple[int, str], directory: str) -> _File:
    for other in [other for other in _files if other[0] != key[0]] + list(_files)[: -_MAX_FILES + 1]:
        _close(other)
    os.makedirs(directory, exist_ok=True)
    name = f"{socket.gethostname()}-{key[0]}-{uuid.uuid4().hex[:8]}.jsonl"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    _files[key] = _File(os.open(os.path.join(directory, name), flags, 0o644))
    return _files[key]


def _close(key: tuple[int, str]) -> None:
    with _lock:
        file = _files.pop(key, None)
    if file is not None:
        with contextlib.suppress(OSError):
            os.close(file.fd)
