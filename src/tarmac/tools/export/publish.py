"""Files that appear under their names only when they are whole, also where a library needs a path."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tarmac.errors import CommitFailed, DiskFull, TarmacError, WriteError
from tarmac.limits import MIB
from tarmac.storage import StorageOptions, WriteOptions, is_local, open_write, scheme_of
from tarmac.storage.local import local_path
from tarmac.storage.locks import try_lock
from tarmac.tools.export.form import SinkFile

__all__ = ["published_path", "published_stream"]

_REPLACE = WriteOptions(overwrite=True)


@contextlib.contextmanager
def published_stream(url: str, storage: StorageOptions) -> Iterator[SinkFile]:
    """A file to be written from front to back; it is published at the end, unless something went wrong."""
    if is_local(url):
        _make_directory(url)
    try:
        sink = open_write(url, storage, _REPLACE)
        try:
            yield SinkFile(sink)
        except BaseException:
            sink.abort()
            raise
        sink.commit()
    except WriteError as error:
        if scheme_of(url) == "-" and isinstance(error.__cause__, BrokenPipeError):
            raise error.__cause__ from None  # whoever reads it has seen enough
        raise


@contextlib.contextmanager
def published_path(url: str, storage: StorageOptions) -> Iterator[str]:
    """The same for libraries that want a path: a hidden file beside the target, or a temporary one."""
    if not is_local(url):
        with tempfile.TemporaryDirectory(prefix="tarmac-") as folder:
            path = os.path.join(folder, "export")
            yield path
            with published_stream(url, storage) as file, open(path, "rb") as made:
                while chunk := made.read(MIB):
                    file.write(chunk)
        return
    _make_directory(url)
    target = Path(os.path.realpath(local_path(url)))
    _remove_orphans(target)
    part = target.with_name(f"{_prefix(target)}{uuid.uuid4().hex[:16]}")
    lock = _locked(part, url)
    try:
        yield str(part)
        _publish(lock, part, target, url)
    finally:
        os.close(lock)
        with contextlib.suppress(OSError):
            os.unlink(part)


def _make_directory(url: str) -> None:
    try:
        os.makedirs(os.path.dirname(local_path(url)) or ".", exist_ok=True)
    except OSError as error:
        raise CommitFailed(f"its directory could not be made: {error.strerror}.", url=url) from error


def _locked(part: Path, url: str) -> int:
    """Make the part file and hold a lock on it for as long as we live: what nobody holds is an orphan."""
    try:
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _failed(error, url) from error
    try_lock(fd)
    return fd


def _publish(fd: int, part: Path, target: Path, url: str) -> None:
    try:
        os.fsync(fd)
        os.replace(part, target)
        directory = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise _failed(error, url) from error


def _prefix(target: Path) -> str:
    return f".{target.name[:100]}.part-"


def _remove_orphans(target: Path) -> None:
    """Remove what killed writers of this file left."""
    prefix = _prefix(target)
    for part in [*target.parent.iterdir()] if target.parent.is_dir() else ():
        if part.name.startswith(prefix):
            with contextlib.suppress(OSError):
                fd = os.open(part, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    if try_lock(fd):
                        os.unlink(part)
                finally:
                    os.close(fd)


def _failed(error: OSError, url: str) -> TarmacError:
    kind: Any = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else CommitFailed
    return kind(f"the file could not be put in place: {error.strerror}.", url=url)  # type: ignore[no-any-return]
