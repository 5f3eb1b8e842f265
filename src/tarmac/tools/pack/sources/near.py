"""Files that list samples, near: on this machine's disk, unpacked, so that any row can be read again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from tarmac.errors import NotFound, ObjectChanged, UnsafeUrl
from tarmac.limits import DEFAULT_LIMITS
from tarmac.storage import StorageOptions, is_local, open_read, scheme_of, stat
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import allowed_name
from tarmac.tar.compression import Decompressing, format_of_name

__all__ = ["bring_near", "Near", "resolved"]


@dataclass(frozen=True)
class Near:
    """Where a file is, and what changes when it does."""

    path: str
    version: str
    seen: tuple[int, int] | None = None
    """The size and the time of change that were planned with; None of a copy, which nobody else changes."""

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """Open what was planned with, and nothing else; `name` is what the user calls it."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _changed(name) from error
        try:
            self._check(os.fstat(fd), name)
            yield fd
        finally:
            os.close(fd)
        # Once more, by name: meanwhile it may have been written to, and others open it by its name.
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise _changed(name) from error
        self._check(found, name)

    def _check(self, found: os.stat_result, name: str) -> None:
        if self.seen not in (None, _mark(found)):
            raise _changed(name)


def _mark(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def _changed(name: str) -> ObjectChanged:
    hint = "run the same command again when nobody writes to it any more."
    return ObjectChanged("the table has changed since it was planned.", url=name, hint=hint)


def bring_near(url: str, directory: str, storage: StorageOptions = DEFAULT_STORAGE) -> Near:
    """A local file as it is; what is remote, compressed or comes in by standard input as a copy."""
    if scheme_of(url) == "pipe":
        raise UnsafeUrl("a source is no command.", url=url, hint="COMMAND | tarmac pack --from lines - …")
    packed = format_of_name(url if is_local(url) else url.partition("?")[0])
    if is_local(url) and packed is None:
        if os.path.isdir(local_path(url)):
            raise NotFound("this is a directory, not a file.", url=url, hint="--from dir.")
        info = stat(url, storage)
        return Near(local_path(url), f"{info.size} {info.version}", _mark(os.stat(local_path(url))))
    path = os.path.join(directory, f"{len(os.listdir(directory))}")
    digest = xxhash.xxh3_64()
    with open(path, "wb") as copy:
        for chunk in _chunks(url, packed, storage):
            copy.write(chunk)
            digest.update(chunk)
    return Near(path, digest.hexdigest())


def _chunks(url: str, packed: str | None, storage: StorageOptions) -> Iterator[bytes]:
    with open_read(url, storage) as source:
        stream = source if packed is None else Decompressing(source, packed, DEFAULT_LIMITS)
        while chunk := stream.read(1 << 20):
            yield chunk


def resolved(name: str, base: str, listed_in: str) -> str:
    """The place of a file by the name that a list gives it: relative to `base`, or else to the list itself.

    A list is data: it can name no commands, and one that came from a store no files of this machine, except
    below a `base` that the user named. Plans hold very many of these, so they are plain strings.
    """
    if scheme_of(name) or not name:
        return str(allowed_name(listed_in, name))
    if not base and is_local(listed_in):
        base = os.path.dirname(local_path(listed_in)) if listed_in != "-" else ""
    if base and not is_local(base):
        return str(allowed_name(f"{base.rstrip('/')}/", name))
    if not base and not is_local(listed_in) and listed_in != "-":
        return str(allowed_name(listed_in, name))
    if not is_local(listed_in) and listed_in != "-" and _leads_out(name):
        raise UnsafeUrl(f"a remote file lists the local file {name[:60]!r}.", url=listed_in)
    return os.path.join(local_path(base) if base else "", os.path.expanduser(name))


def _leads_out(name: str) -> bool:
    """Say whether a name, put behind a directory, may be that of a file elsewhere."""
    return name.startswith(("/", "~")) or ".." in name.split("/")
