"""What is known about a kept download: the note beside it, its digest, and whether it is a shard."""

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

__all__ = ["Note", "check_shard", "digest_of", "key_of", "read_note", "write_all", "write_note"]

LARGEST_NOTE = 64 * KIB


@dataclass(frozen=True, slots=True)
class Note:
    """What is written beside an entry, to check it against."""

    url: str
    size: int
    digest: str
    version: str | None
    shown: str = ""
    """The URL for people, without what may be secret in it."""


def key_of(url: str) -> str:
    """Return what stands for a URL in names and notes, which may not hold its secrets."""
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()


def read_note(notes: Folder, name: str) -> Note | None:
    """Return what is written beside an entry; None if that cannot be understood."""
    try:
        fd = notes.open(name)
        try:
            return Note(**json.loads(os.read(fd, LARGEST_NOTE)))
        finally:
            os.close(fd)
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def write_note(parts: Folder, draft: str, notes: Folder, name: str, note: Note) -> None:
    """Put a note beside an entry, whole or not at all."""
    try:
        fd = parts.create(draft)
        try:
            write_all(fd, json.dumps(asdict(note)).encode())
        finally:
            os.close(fd)
        parts.move(draft, notes, name)
    finally:
        parts.remove(draft)


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes; the system may take only some of them at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def digest_of(source: LocalSource) -> str:
    """Return the digest of a whole file."""
    import xxhash

    hasher, rest = xxhash.xxh3_64(), _FromStart(source)
    while chunk := rest.read(MIB):
        hasher.update(chunk)
    return str(hasher.hexdigest())


def check_shard(source: LocalSource) -> None:
    """Raise an ArchiveError if a file does not begin as a shard does, compressed or not."""
    with contextlib.suppress(ImportError):  # compressed in a way that cannot be read here: readers say so
        check_beginning(_FromStart(source))


class _FromStart:
    """The bytes of a file from its beginning, wherever its own position is."""

    def __init__(self, source: LocalSource) -> None:
        self._source, self._position = source, 0

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes."""
        data = self._source.read_at(self._position, size)
        self._position += len(data)
        return data
