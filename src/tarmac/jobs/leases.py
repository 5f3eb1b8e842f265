"""Hold a lease on each unit in progress, so that tasks without a driver do not do the same work.

Leases only save work: two workers that do one unit write the same bytes. A lease is a file or object with its owner in
it, created only if it does not exist, and renewed while the owner lives. One that was not renewed for a while, or whose
process has ended, is free.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from tarmac import environment
from tarmac.errors import CommitFailed, NotFound, TarmacError, WriteError
from tarmac.jobs.entries import public_name
from tarmac.jobs.journal import REQUESTS, unit_hash
from tarmac.jobs.spelling import AS_SPELT, Spelling
from tarmac.runtime.lookahead import in_threads
from tarmac.runtime.processes import allow_fork, is_running
from tarmac.storage import StorageOptions, WriteOptions, is_local, list_objects, read_all, write_all
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE

_RELEASED = b"{}"
_NEW = WriteOptions(overwrite=False, durable=False)
_REPLACE = WriteOptions(overwrite=True, durable=False)


@dataclass(frozen=True)
class Lease:
    """A lease as others see it."""

    unit: str
    owner: str
    host: str
    pid: int
    since: float
    renewed: float

    @property
    def live(self) -> bool:
        """Whether the owner may still be running."""
        if self.host == socket.gethostname() and not is_running(self.pid):
            return False
        return time.time() - self.renewed < environment.lease_seconds()


class Leases:
    """The leases of one process on the units of a job; a thread renews them.

    `owner` names a task of a cluster: a task that is started again takes its own leases over at once.
    """

    def __init__(
        self,
        url: str,
        owner: str = "",
        storage: StorageOptions = DEFAULT_STORAGE,
        spelling: Spelling = AS_SPELT,
    ) -> None:
        self._url, self._storage = f"{url}/leases", storage
        self._owner, self._spelling = owner, spelling
        self._held: dict[str, float] = {}
        """The units held, and when their leases were taken."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, unit: str, *, share: bool = False) -> bool:
        """Take the lease of a unit; return False if another task holds it, unless both may have it (`share`)."""
        if unit in self._held:
            return True
        since = time.time()
        content = self._content(unit, since)
        try:
            self._write(unit, content, _NEW)
        except CommitFailed:
            other = read_lease(self._file(unit), self._storage)
            mine = other is not None and bool(self._owner) and other.owner == self._owner
            if not (share or mine or other is None or not other.live):
                return False
            self._write(unit, content, _REPLACE)
        self._held[unit] = since
        self._renew_in_thread()
        return True

    def try_take(self, unit: str, *, share: bool = False) -> bool:
        """Take a lease; one that cannot be written counts as taken, because leases only save work."""
        try:
            return self.take(unit, share=share)
        except TarmacError:
            return True

    def release(self, unit: str) -> None:
        """Give a lease back."""
        if self._held.pop(unit, None) is None:
            return
        if is_local(self._url):
            with contextlib.suppress(OSError):
                os.unlink(local_path(self._file(unit)))
        else:
            with contextlib.suppress(TarmacError):
                write_all(self._file(unit), _RELEASED, self._storage, _REPLACE)

    def close(self) -> None:
        """Give all leases back."""
        self._ended.set()
        for unit in list(self._held):
            self.release(unit)

    def _renew_in_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="tarmac-leases", daemon=True)
            allow_fork(self._thread)
            self._thread.start()

    def _renew(self) -> None:
        while not self._ended.wait(environment.lease_seconds() / 4):
            for unit, since in list(self._held.items()):
                with contextlib.suppress(TarmacError, OSError):
                    if unit not in self._held:
                        continue  # released meanwhile
                    if is_local(self._url):
                        os.utime(local_path(self._file(unit)))
                    else:
                        write_all(self._file(unit), self._content(unit, since), self._storage, _REPLACE)

    def _content(self, unit: str, since: float) -> bytes:
        owner = {"owner": self._owner, "host": socket.gethostname(), "pid": os.getpid()}
        times = {"since": since, "renewed": time.time()}
        name = public_name(self._spelling.unit_to_ledger(unit))
        return json.dumps({"unit": name} | owner | times).encode()

    def _write(self, unit: str, content: bytes, write: WriteOptions) -> None:
        if not is_local(self._url):
            write_all(self._file(unit), content, self._storage, write)
            return
        # Not through a part file: a lease is short, and is taken for every unit.
        path = local_path(self._file(unit))
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if write.overwrite else os.O_EXCL)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(os.open(path, flags, 0o644), "wb") as file:
                file.write(content)
        except FileExistsError:
            raise CommitFailed("the file exists.", url=path) from None
        except OSError as error:
            raise WriteError(f"the lease cannot be written: {error.strerror}.", url=path) from error

    def _file(self, unit: str) -> str:
        return f"{self._url}/{unit_hash(self._spelling.unit_to_ledger(unit))}.json"


def read_lease(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> Lease | None:
    """Return a lease, or None if there is none, or it was given back."""
    try:
        values: dict[str, Any] = json.loads(read_all(url, storage))
        if is_local(url):
            values["renewed"] = _modified(url)
        return Lease(**values)
    except (NotFound, FileNotFoundError):
        return None
    except (ValueError, TypeError):  # given back; on disk, still being written
        return Lease("", "", "", 0, *[_modified(url)] * 2) if is_local(url) else None


def _modified(url: str) -> float:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(local_path(url)).st_mtime
    return 0.0


def read_leases(url: str, storage: StorageOptions = DEFAULT_STORAGE) -> list[Lease]:
    """Return the leases on the units of a generation."""
    directory = f"{url}/leases"
    urls: list[str] = []
    if is_local(directory):
        with contextlib.suppress(FileNotFoundError):
            urls = [f"{directory}/{name}" for name in sorted(os.listdir(local_path(directory)))]
    else:
        with contextlib.suppress(NotFound):
            urls = [url for url, info in list_objects(f"{directory}/", storage) if info.size > len(_RELEASED)]

    def read(each: str) -> Lease | None:
        return read_lease(each, storage)

    leases = map(read, urls) if is_local(directory) else in_threads(read, urls, REQUESTS)
    return [lease for lease in leases if lease is not None]
