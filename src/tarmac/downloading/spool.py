"""Keep the results of a unit as they come, so that a killed unit fetches again only what was in flight.

Rows end in any order, and the shard has them in the order of the table. So every result is appended to a file beside
the ledger at once, and the shard is written from it at the end. In a store, parts of that file are uploaded now and
then.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xxhash

from tarmac.errors import DiskFull, NotFound, WriteError
from tarmac.jobs.chunks import Chunks
from tarmac.limits import MIB
from tarmac.storage import StorageOptions, can_list, is_local, list_objects, read_all, write_all
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE, WriteOptions

_HEAD = struct.Struct("<4sQIIQ")
"""Magic number, row, length of the facts, length of the data, and a hash of both."""
_MAGIC = b"tsp1"
_VOID = (1 << 64) - 1
"""In the place of a row: failures before this do not count."""
_SUFFIX = ".spool"
UPLOAD_SECONDS, UPLOAD_BYTES = 60.0, 16 * MIB
"""When results are uploaded to a store: after some time, or when there are enough bytes of them."""
_REPLACE = WriteOptions(overwrite=True)


class _Entry(NamedTuple):
    path: str
    offset: int
    facts: int
    data: int
    good: bool


@dataclass
class Spool:
    """The results of one unit; those of another job or other rows are ignored."""

    directory: str
    fingerprint: str
    storage: StorageOptions = DEFAULT_STORAGE
    _entries: dict[int, _Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._attempt = os.urandom(8).hex()
        self._fd, self._offset, self._uploaded, self._parts = -1, 0, 0, 0
        self._upload_time = time.monotonic()
        self._readers: dict[str, int] = {}
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def rows(self) -> set[int]:
        """The rows that have a result."""
        return set(self._entries)

    def open(self) -> None:
        """Read what earlier attempts have left, and begin a file of this attempt."""
        if is_local(self.directory):
            folder = local_path(self.directory)
            os.makedirs(folder, exist_ok=True)
            for name in sorted(os.listdir(folder)):
                if name.endswith(_SUFFIX):
                    self._load(os.path.join(folder, name))
        else:
            self._temporary = tempfile.TemporaryDirectory(prefix="tarmac-download-")
            folder = self._temporary.name
            for number, url in enumerate(self._objects()):
                path = os.path.join(folder, f"{number}{_SUFFIX}")
                with open(path, "wb") as file:
                    file.write(read_all(url, self.storage))
                self._load(path)
        self._path = os.path.join(folder, f"{self._attempt}{_SUFFIX}")
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._append(self._identity)

    @property
    def _identity(self) -> bytes:
        return self.fingerprint.encode().ljust(64)[:64]

    def _objects(self) -> list[str]:
        if not can_list(self.directory):
            return []
        with contextlib.suppress(NotFound):
            urls = (url for url, _ in list_objects(f"{self.directory}/", self.storage))
            return sorted(url for url in urls if url.endswith(_SUFFIX))
        return []

    def _load(self, path: str) -> None:
        """Read the results of a file, up to one that is incomplete."""
        with open(path, "rb") as file:
            if file.read(64) != self._identity:
                return
            offset = 64
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                magic, row, facts, data, digest = _HEAD.unpack(head)
                content = file.read(facts + data) if magic == _MAGIC else b""
                if len(content) != facts + data or xxhash.xxh3_64_intdigest(content) != digest:
                    return
                if row == _VOID:
                    self._entries = {number: each for number, each in self._entries.items() if each.good}
                else:
                    entry = _Entry(path, offset, facts, data, data > 0)
                    self._entries.setdefault(row, entry)
                offset += _HEAD.size + facts + data

    def add(self, row: int, facts: dict[str, Any], data: bytes) -> None:
        """Store a result; it survives the process."""
        text = json.dumps(facts).encode()
        offset = self._offset
        self._append(_record(row, text, data))
        self._entries[row] = _Entry(self._path, offset, len(text), len(data), bool(data))

    def forget_failures(self) -> None:
        """Have another attempt fetch again what failed so far."""
        self._append(_record(_VOID, b"", b""))

    def _append(self, content: bytes) -> None:
        view = memoryview(content)
        try:
            while view:
                done = os.write(self._fd, view)
                view, self._offset = view[done:], self._offset + done
        except OSError as error:
            kind = DiskFull if error.errno == 28 else WriteError
            raise kind(f"a result cannot be stored: {error.strerror}.", url=self.directory) from error

    def upload_if_due(self) -> None:
        """Upload now and then, so that a killed unit loses little."""
        waited = time.monotonic() - self._upload_time
        if waited > UPLOAD_SECONDS or self._offset - self._uploaded > UPLOAD_BYTES:
            self.upload()

    def upload(self) -> None:
        """Upload to a store what was added since the last time."""
        self._upload_time = time.monotonic()
        if is_local(self.directory) or not can_list(self.directory) or self._offset == self._uploaded:
            return
        part = os.pread(self._fd, self._offset - self._uploaded, self._uploaded)
        url = f"{self.directory}/{self._parts:06d}-{self._attempt}{_SUFFIX}"
        content = part if self._uploaded == 0 else self._identity + part
        write_all(url, content, self.storage, _REPLACE)
        self._uploaded, self._parts = self._offset, self._parts + 1

    def facts(self, row: int) -> dict[str, Any]:
        """Return the facts about a row."""
        entry = self._entries[row]
        facts: dict[str, Any] = json.loads(self._read(entry.path, entry.offset + _HEAD.size, entry.facts))
        return facts

    def data(self, row: int) -> bytes:
        """Return the data of a row; empty if it failed."""
        entry = self._entries[row]
        return self._read(entry.path, entry.offset + _HEAD.size + entry.facts, entry.data)

    def _read(self, path: str, offset: int, size: int) -> bytes:
        fd = self._readers.get(path)
        if fd is None:
            fd = self._readers[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(fd, size, offset)

    def close(self) -> None:
        """Close all files; they remain."""
        for fd in (*self._readers.values(), self._fd):
            if fd >= 0:
                os.close(fd)
        self._readers, self._fd = {}, -1
        if self._temporary is not None:
            self._temporary.cleanup()

    def clear(self) -> None:
        """Remove the files of all attempts."""
        Chunks(self.directory, self.fingerprint, self.storage).clear()


def _record(row: int, facts: bytes, data: bytes) -> bytes:
    content = facts + data
    return _HEAD.pack(_MAGIC, row, len(facts), len(data), xxhash.xxh3_64_intdigest(content)) + content


@contextlib.contextmanager
def opened(spool: Spool) -> Iterator[Spool]:
    """Open a spool for a while."""
    spool.open()
    try:
        yield spool
    finally:
        spool.close()
