"""Extract fields as files of a directory, and never outside it.

A file is named `key.field`, as in the shard. Names that lead out of the directory are rejected, and so are
symbolic links on the way. Existing files stay: equal content counts as written, different content is an error unless
`overwrite` is set. Two samples with the same file name are always an error. Files appear atomically.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Self

from tarmac.errors import BadName, CommitFailed, DiskFull, WriteError
from tarmac.samples.grouping import Sample
from tarmac.storage.locks import claim, try_lock
from tarmac.tools.keystore import UniqueNames
from tarmac.tools.output import fields_of
from tarmac.tools.show.verb import SampleView

File = tuple[list[str], bytes]
"""Directories and name of a file, and its content."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_DIRECTORIES = 64
_REMEMBERED = 50
_LONGEST_PATH = 4096
"""Maximum length of a path in Linux, including the final zero; deeper files are reached step by step."""


def extract(samples: Iterable[SampleView], directory: str, *, overwrite: bool = False) -> tuple[int, int]:
    """Write samples to a directory; return the number of samples and of files."""
    count = 0
    with Extractor(directory, overwrite=overwrite) as extractor:
        for count, sample in enumerate(samples, 1):  # noqa: B007 - the last number is the count
            extractor.add(sample.to_sample())
        return count, extractor.files


def safe_parts(name: str) -> list[str]:
    """Split a name into directories and file; raise if it leads out of the directory."""
    if name.startswith("/") or "\0" in name:
        raise BadName("absolute names and names with NUL are not extracted.", key=name)
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or not parts:
        raise BadName("the name points outside the directory.", key=name)
    return parts


def files_of(sample: Sample) -> list[File]:
    """Return the files of a sample; raise if a name is unsafe."""
    key = sample["__key__"]
    return [(safe_parts(f"{key}.{field}"), data) for field, data in fields_of(sample).items()]


class Extractor:
    """Write samples to a directory, which is created if missing; a context manager.

    Several extractors that fill one directory share their `claims`, the path of a file, so that none replaces
    what another has just written.
    """

    def __init__(self, directory: str, *, overwrite: bool = False, claims: str = "") -> None:
        self._directory, self._overwrite = directory, overwrite
        self.files = 0
        """Files written, or found with equal content."""
        self._first: dict[str, int] = {}
        self._last: deque[tuple[str, int]] = deque(maxlen=_REMEMBERED)
        self._open: dict[tuple[str, ...], int] = {}
        try:
            os.makedirs(directory, exist_ok=True)
            self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            what = f"cannot create the directory: {error.strerror}."
            raise CommitFailed(what, url=directory) from error
        try:
            # Without overwriting, the directory itself shows which names are taken.
            self._claims = UniqueNames(claims) if overwrite else None
        except BaseException:
            os.close(self._root)
            raise

    def add(self, sample: Sample) -> int:
        """Write the fields of a sample, or nothing if a name is unsafe; return the number of bytes."""
        files = files_of(sample)
        self.put(files)
        return sum(len(data) for _, data in files)

    def put(self, files: Sequence[File]) -> None:
        """Write files, or none of them if one has the name of a file that was written before."""
        if self._claims is not None:
            taken = self._claims.take("/".join(parts) for parts, _ in files)
            if taken is not None:
                raise CommitFailed(
                    f'two samples have the file name "{taken}".',
                    url=self._directory,
                    hint="unique keys: tarmac copy --rekey '{i:09d}'.",
                )
        for parts, data in files:
            self._put(parts, data)

    def _put(self, parts: list[str], data: bytes) -> None:
        *folders, name = parts
        path = "/".join(parts)
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
            raise self._failed(error, path) from error
        self.files += 1
        if len(self._first) < _REMEMBERED:
            self._first[path] = len(data)
        else:
            self._last.append((path, len(data)))

    @property
    def some(self) -> dict[str, int]:
        """Return the first and the last files with their sizes, to check later that they still exist."""
        paths = (
            (os.path.join(self._directory, name), size) for name, size in [*self._first.items(), *self._last]
        )
        return {path: size for path, size in paths if len(os.fsencode(path)) < _LONGEST_PATH}

    def _link(self, folder: int, part: str, name: str, data: bytes) -> None:
        """Name the file if the name is free, which a hard link does atomically."""
        try:
            os.link(part, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            if not _holds(folder, name, data):
                what = f'the file "{name}" exists with different content.'
                hint = "another directory, or `overwrite` to replace it; if keys repeat, tarmac copy --rekey '{i:09d}'."
                raise CommitFailed(what, url=self._directory, hint=hint) from None
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            # Without hard links: create the name first, then replace it.
            os.close(os.open(name, _NEW, 0o666, dir_fd=folder))
            os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _folder(self, folders: tuple[str, ...]) -> int:
        """Return the descriptor of a subdirectory, created if necessary, without following links.

        It is opened one step at a time from the nearest open directory, by descriptors alone, so a
        directory that is swapped for a link meanwhile leads nowhere, and any depth works.
        """
        folder = self._open.get(folders, -1) if folders else self._root
        if folder >= 0:
            return folder
        known = max((each for each in self._open if folders[: len(each)] == each), key=len, default=())
        above, begun, kept = self._open.get(known, self._root), len(known), len(folders) - 2
        for depth in range(begun, len(folders)):
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folders[depth], dir_fd=above)
                folder = os.open(folders[depth], _DIRECTORY, dir_fd=above)
            finally:
                if begun < depth <= kept:
                    os.close(above)
            if depth >= kept:  # it and its parent are likely to be needed again
                self._keep(folders[: depth + 1], folder)
            above = folder
        return folder

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
            what = "expected a directory, got a file or a symbolic link."
            return CommitFailed(what, url=where)
        return CommitFailed(f"cannot write the file: {error.strerror}.", url=where)

    def close(self) -> None:
        """Close the directory."""
        while self._open:
            os.close(self._open.popitem()[1])
        if self._claims is not None:
            self._claims.close()
        if self._root >= 0:
            root, self._root = self._root, -1
            os.close(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _begin_part(folder: int, name: str) -> tuple[int, str]:
    """Create and lock a part file; an unlocked one was left by a killed process.

    It is named after the file, so that the next run removes it; while another process writes the same
    file, it gets a unique name.
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
    """Remove a part file that no process holds; return False if one does."""
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
    """Remove a part file whose lock we hold, unless its name now belongs to another file."""
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(part, dir_fd=folder, follow_symlinks=False), os.fstat(fd)):
            os.unlink(part, dir_fd=folder)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _holds(folder: int, name: str, data: bytes) -> bool:
    """Return whether a regular file with this content exists."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return False
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size != len(data):
            return False
        with open(fd, "rb", closefd=False) as file:
            return file.read(len(data) + 1) == data
    finally:
        os.close(fd)
