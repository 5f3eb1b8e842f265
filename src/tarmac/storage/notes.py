"""The note beside a cache entry, its digest, and the check that it is a shard."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass

from tarmac.limits import KIB, MIB
from tarmac.storage.folder import Folder
from tarmac.storage.local import LocalSource
from tarmac.tar import check_beginning

MAX_NOTE = 64 * KIB


@dataclass(frozen=True, slots=True)
class Note:
    """The recorded properties of an entry, to verify it against."""

    url: str
    size: int
    digest: str
    version: str | None
    shown: str = ""
    """The URL without secrets, for display."""


def key_of(url: str) -> str:
    """Return a hash of a URL for names and notes, which must not contain its secrets."""
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()


def read_note(notes: Folder, name: str) -> Note | None:
    """Return the note of an entry, or None if it is missing or invalid."""
    try:
        fd = notes.open(name)
        try:
            return Note(**json.loads(os.read(fd, MAX_NOTE)))
        finally:
            os.close(fd)
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def write_note(parts: Folder, draft: str, notes: Folder, name: str, note: Note) -> None:
    """Write the note of an entry atomically."""
    try:
        fd = parts.create(draft)
        try:
            write_fully(fd, json.dumps(asdict(note)).encode())
        finally:
            os.close(fd)
        parts.move(draft, notes, name)
    finally:
        parts.remove(draft)


def write_fully(fd: int, data: bytes) -> None:
    """Write all bytes; `os.write` may accept only some of them per call."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def digest_of(source: LocalSource) -> str:
    """Return the digest of a whole file."""
    import xxhash

    hasher, content = xxhash.xxh3_64(), _FromStart(source)
    while chunk := content.read(MIB):
        hasher.update(chunk)
    return str(hasher.hexdigest())


def check_shard(source: LocalSource) -> None:
    """Raise an ArchiveError if a file does not begin like a shard, compressed or not."""
    with contextlib.suppress(ImportError):  # the decompressor is not installed; readers report that
        check_beginning(_FromStart(source))


class _FromStart:
    """The bytes of a file from its beginning, independent of its position."""

    def __init__(self, source: LocalSource) -> None:
        self._source, self._position = source, 0

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes."""
        data = self._source.read_at(self._position, size)
        self._position += len(data)
        return data
