"""Fields as files of a directory, and never outside it.

A file is called `key.field`, as in the shard. Names that lead out of the directory are refused, and so are
symbolic links on the way. What is there already stays: the same bytes are as good as written, others are an
error unless they may be replaced. Two samples that would be the same file are an error even then. A file
appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import uuid
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tarmac.errors import BadName, CommitFailed, DiskFull, WriteError
from tarmac.samples.grouping import Sample
from tarmac.storage.locks import claim, try_lock
from tarmac.tools.keystore import UniqueNames

__all__ = ["Extractor", "File", "files_of", "safe_parts"]

File = tuple[list[str], bytes]
"""The directories and the name of a file, and what is in it."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIRECTORIES = 64
_REMEMBERED = 50
_LONGEST_PATH = 4096
"""Bytes of a path that Linux takes, with the zero behind it; what is deeper is reached step by step only."""


def safe_parts(name: str) -> list[str]:
    """The directories and the file of a name, or an error if it leads out of where it is put."""
    if name.startswith("/") or "\0" in name:
        raise BadName("the name is absolute or has a NUL; it is not extracted.", key=name)
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or not parts:
        raise BadName("the name leads out of the directory; it is not extracted.", key=name)
    return parts


def files_of(sample: Sample) -> list[File]:
    """The files that a sample is, or an error if the name of one is unsafe."""
    key = sample["__key__"]
    return [(safe_parts(f"{key}.{field}"), data) for field, data in sample.items() if field[:2] != "__"]


class Extractor:
    """Writes samples to a directory, which is made if it is not there; a context manager.

    Several that fill one directory together share their `claims`, the path of a file, so that none replaces
    what another has just written.
    """

    def __init__(self, directory: str, *, overwrite: bool = False, claims: str = "") -> None:
        self._directory, self._overwrite = directory, overwrite
        self.files = 0
        """Files that are there now because of us, written or found."""
        self._first: dict[str, int] = {}
        self._last: deque[tuple[str, int]] = deque(maxlen=_REMEMBERED)
        self._open: dict[tuple[str, ...], int] = {}
        try:
            os.makedirs(directory, exist_ok=True)
            self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            what = f"this cannot be a directory: {error.strerror}."
            raise CommitFailed(what, url=directory) from error
        try:
            # Where nothing is replaced, the directory itself tells which names are taken.
            self._claims = UniqueNames(claims) if overwrite else None
        except BaseException:
            os.close(self._root)
            raise

    def add(self, sample: Sample) -> int:
        """Write the fields of a sample, or nothing of it if a name is unsafe; return how many bytes."""
        files = files_of(sample)
        self.put(files)
        return sum(len(data) for _, data in files)

    def put(self, files: Sequence[File]) -> None:
        """Write files, or none of them if one has the name of another that was written before."""
        if self._claims is not None:
            taken = self._claims.take("/".join(parts) for parts, _ in files)
            if taken is not None:
                raise CommitFailed(
                    f'two samples would both be the file "{taken}".',
                    url=self._directory,
                    hint="keys have to differ: tarmac copy --rekey '{i:09d}'.",
                )
        for parts, data in files:
            self._put(parts, data)

    def _put(self, parts: list[str], data: bytes) -> None:
        *folders, name = parts
        place = "/".join(parts)
        try:
            folder = self._folder(tuple(folders))
            fd, part = _begin_part(folder, name)
            try:
                _write(fd, data)
                # Some file systems report a failed write only at close; the copy keeps the lock till the end.
                written, fd = fd, os.dup(fd)
                os.close(written)
                if self._overwrite:
                    os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
                else:
                    self._link(folder, part, name, data)
            finally:
                try:
                    _remove(folder, part, fd)
                finally:
                    os.close(fd)
        except OSError as error:
            if isinstance(error, WriteError):
                raise
            raise self._failed(error, place) from error
        self.files += 1
        if len(self._first) < _REMEMBERED:
            self._first[place] = len(data)
        else:
            self._last.append((place, len(data)))

    @property
    def some(self) -> dict[str, int]:
        """The first and the last of the files, and their sizes: enough to notice that they are gone."""
        found = (
            (os.path.join(self._directory, name), size) for name, size in [*self._first.items(), *self._last]
        )
        return {path: size for path, size in found if len(os.fsencode(path)) < _LONGEST_PATH}

    def _link(self, folder: int, part: str, name: str, data: bytes) -> None:
        """Give the file its name if that is free, which a hard link does in one step."""
        try:
            os.link(part, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            if not _holds(folder, name, data):
                raise CommitFailed(
                    f'there is another "{name}" already; it stays as it is.',
                    url=self._directory,
                    hint="another directory, or --overwrite to replace it.",
                ) from None
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            # No hard links here: a name that is made first and then replaced has to do.
            os.close(os.open(name, _NEW, 0o666, dir_fd=folder))
            os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _folder(self, folders: tuple[str, ...]) -> int:
        """The descriptor of a directory inside ours, made if need be, without following links.

        It is reached one step at a time from the nearest directory that is open, by descriptors alone: a
        directory that is swapped for a link meanwhile leads nowhere, and no depth is too deep.
        """
        found = self._open.get(folders, -1) if folders else self._root
        if found >= 0:
            return found
        known = max((each for each in self._open if folders[: len(each)] == each), key=len, default=())
        above, begun, kept = self._open.get(known, self._root), len(known), len(folders) - 2
        for depth in range(begun, len(folders)):
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folders[depth], dir_fd=above)
                found = os.open(folders[depth], _DIRECTORY, dir_fd=above)
            finally:
                if begun < depth <= kept:
                    os.close(above)
            if depth >= kept:  # it and the one above are likely to be asked for again
                self._keep(folders[: depth + 1], found)
            above = found
        return found

    def _keep(self, folders: tuple[str, ...], fd: int) -> None:
        if len(self._open) >= _OPEN_DIRECTORIES:
            oldest = next(iter(self._open))
            os.close(self._open.pop(oldest))
        self._open[folders] = fd

    def _failed(self, error: OSError, name: str) -> WriteError:
        where = f"{self._directory.rstrip('/')}/{name}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFull("no space left for the file.", url=where)
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            what = "a symbolic link or a file is on the way, where a directory should be."
            return CommitFailed(what, url=where)
        return CommitFailed(f"the file could not be put in place: {error.strerror}.", url=where)

    def close(self) -> None:
        """Let go of the directory."""
        while self._open:
            os.close(self._open.popitem()[1])
        if self._claims is not None:
            self._claims.close()
        if self._root >= 0:
            root, self._root = self._root, -1
            os.close(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _begin_part(folder: int, name: str) -> tuple[int, str]:
    """Create a part file and lock it, which tells it from what a killed process left.

    It is named after the file, so that who comes again clears that away; while somebody else writes the same
    file, it has a name of its own.
    """
    part = named = f".tarmac-part-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    while True:
        try:
            fd = os.open(part, _NEW, 0o666, dir_fd=folder)
        except FileExistsError:
            if not _remove_if_free(folder, part):
                part = f"{named}-{uuid.uuid4().hex[:16]}"
            continue
        if claim(fd) and os.fstat(fd).st_nlink:
            return fd, part
        os.close(fd)  # another writer took it for an orphan before it was locked


def _remove_if_free(folder: int, part: str) -> bool:
    """Remove a part file that no living writer holds; false if one does."""
    try:
        fd = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    try:
        free = try_lock(fd)
        if free:
            _remove(folder, part, fd)
        return free
    finally:
        os.close(fd)


def _remove(folder: int, part: str, fd: int) -> None:
    """Remove a part file of which we hold the lock, unless its name is gone or another's by now."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(part, dir_fd=folder, follow_symlinks=False), os.fstat(fd)):
            os.unlink(part, dir_fd=folder)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _holds(folder: int, name: str, data: bytes) -> bool:
    """Whether a file is there with these bytes; a link never is."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != len(data):
            return False
        with open(fd, "rb", closefd=False) as file:
            return file.read(len(data) + 1) == data
    finally:
        os.close(fd)
