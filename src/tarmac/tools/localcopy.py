"""Local copies of the tables and lists that verbs read, so that any row can be read again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from tarmac.errors import NotFound, ObjectChanged, UnsafeUrl, UsageError
from tarmac.jobs.statuses import file_status
from tarmac.jobs.task import Status
from tarmac.limits import DEFAULT_LIMITS, Limits
from tarmac.storage import StorageOptions, is_local, open_read, scheme_of, stat, without_query
from tarmac.storage.local import local_path
from tarmac.storage.types import DEFAULT_STORAGE
from tarmac.storage.urls import allowed_name
from tarmac.tar.compression import HEAD, Decompressing, detect, format_of_name

_CHUNK = 1 << 20


@dataclass(frozen=True)
class LocalCopy:
    """A local file: the original, or a decompressed copy of it."""

    path: str
    version: str
    """Changes when the content does."""
    stat: tuple[int, int] | None = None
    """The size and modification time of an original; None for a copy, which nothing else modifies."""

    @contextlib.contextmanager
    def opened(self, url: str) -> Iterator[int]:
        """Open the file; raise if it changes before it is closed. `url` names it in errors."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _changed(url) from error
        try:
            self._check(os.fstat(fd), url)
            yield fd
        finally:
            os.close(fd)
        # Checked by name as well: it may have been replaced meanwhile, and other readers open it by name.
        try:
            current = os.stat(self.path)
        except OSError as error:
            raise _changed(url) from error
        self._check(current, url)

    def status(self) -> Status:
        """Return the current status of an original, and the digest of a copy."""
        return [self.version] if self.stat is None else file_status(self.path)

    def _check(self, current: os.stat_result, url: str) -> None:
        if self.stat not in (None, (current.st_size, current.st_mtime_ns)):
            raise _changed(url)


def _changed(url: str) -> ObjectChanged:
    return ObjectChanged(
        "the table changed while it was being read.",
        url=url,
        hint="run the same command again when nothing writes to it.",
    )


def ensure_local(
    url: str, directory: str, storage: StorageOptions = DEFAULT_STORAGE, *, allow_exec: bool = False
) -> LocalCopy:
    """Return a local file as it is; copy anything remote or compressed, and standard input, to `directory`."""
    if scheme_of(url) == "pipe" and not allow_exec:
        raise UnsafeUrl(
            "a source cannot be a command.", url=url, hint="COMMAND | tarmac pack --from FORMAT -"
        )
    compression = format_of_name(without_query(url))
    if is_local(url) and compression is None:
        if os.path.isdir(local_path(url)):
            raise NotFound("expected a file, got a directory.", url=url)
        info, current = stat(url, storage), os.stat(local_path(url))
        return LocalCopy(
            local_path(url), f"{info.size} {info.version}", (current.st_size, current.st_mtime_ns)
        )
    if not directory:
        what = "workers on other machines would not find a copy of this table."
        raise UsageError(what, url=url, hint="download and decompress it to a directory that they share.")
    path = os.path.join(directory, f"{len(os.listdir(directory))}")
    digest = xxhash.xxh3_64()
    with open(path, "wb") as copy:
        for chunk in decompressed(url, storage, compression=compression):
            copy.write(chunk)
            digest.update(chunk)
    return LocalCopy(path, digest.hexdigest())


def decompressed(
    url: str, storage: StorageOptions, limits: Limits = DEFAULT_LIMITS, *, compression: str | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a URL, decompressed if its name or its first bytes show that it is compressed."""
    with open_read(url, storage) as source:
        head = b""
        while len(head) < HEAD and (more := source.read(_CHUNK)):
            head += more
        compression = compression or detect(head)
        stream = source
        if compression is None:
            yield head
        else:
            stream = Decompressing(source, compression, limits, head)  # type: ignore[assignment]
        while chunk := stream.read(_CHUNK):
            yield chunk


def resolve_name(name: str, base: str, listed_in: str) -> str:
    """Return the URL of a file that a list names, relative to `base` or else to the list.

    Lists are data: they cannot name commands, and a remote list cannot name local files except below a `base`
    that the caller chose. The result is a plain string, because plans hold millions of them.
    """
    if scheme_of(name) or not name:
        return str(allowed_name(listed_in, name))
    if not base and is_local(listed_in):
        base = os.path.dirname(local_path(listed_in)) if listed_in != "-" else ""
    if base and not is_local(base):
        return str(allowed_name(f"{base.rstrip('/')}/", name))
    remote_list = not is_local(listed_in) and listed_in != "-"
    if not base and remote_list:
        return str(allowed_name(listed_in, name))
    if remote_list and (name.startswith(("/", "~")) or ".." in name.split("/")):
        raise UnsafeUrl(f"a remote file lists the local file {name[:60]!r}.", url=listed_in)
    return os.path.join(local_path(base) if base else "", os.path.expanduser(name))
