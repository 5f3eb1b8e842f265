"""Keep working files in a temporary directory while a verb runs."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import socket
import tempfile
from array import array
from collections.abc import Iterable, Iterator

import numpy as np

from tarmac.errors import DiskFull, TarmacError, UsageError, WriteError
from tarmac.storage import is_local
from tarmac.storage.locks import try_lock

_PREFIX, _LOCK = "work-", "lock"
"""The names of directories beside an output, and of the file in each that its run has locked."""
HINT = "`tmp`, a directory that is writable and has free space."
_BATCH = 1 << 16


@contextlib.contextmanager
def work_directory(
    verb: str, tmp: str | os.PathLike[str] | None = None, shared: str | None = None
) -> Iterator[str]:
    """Create a directory in `tmp`, or in the system's temporary directory, and remove it at the end.

    If the workers do not share that, `shared` is the directory beside the output, which they share. There, what killed
    runs have left is removed first.
    """
    if shared is not None and not tmp and not is_local(shared):
        what = (
            f"{verb} keeps working files that all workers read: `tmp` must name a directory that they share."
        )
        raise UsageError(what, field="tmp", url=shared)
    home = os.fspath(tmp) if tmp else shared
    try:
        if shared is not None and not tmp:
            os.makedirs(shared, exist_ok=True)
            _remove_abandoned(shared)
        directory = tempfile.TemporaryDirectory(
            prefix=_PREFIX if home == shared and shared is not None else f"tarmac-{verb}-",
            dir=None if home is None else os.path.abspath(home),
            ignore_cleanup_errors=True,
        )
    except OSError as error:
        what = f"cannot create a temporary directory: {error.strerror}."
        raise UsageError(what, field="tmp", url=tmp and os.fspath(tmp), hint=HINT) from None
    with directory as path, _locked(path):
        yield path


def _remove_abandoned(home: str) -> None:
    """Remove the directories of runs of this machine that were killed: their locks are free.

    Some file systems do not see the locks of other machines.
    """
    for path in glob.glob(f"{glob.escape(home)}/{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), open(path, "r+") as file:
            if file.read() == socket.gethostname() and try_lock(file.fileno()):
                shutil.rmtree(os.path.dirname(path), ignore_errors=True)


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Lock a file in a directory; it has its name only after it was locked."""
    path = os.path.join(directory, _LOCK)
    with disk_errors(path):
        fd = os.open(f"{path}.part", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with disk_errors(path):
            try_lock(fd)
            os.write(fd, socket.gethostname().encode())
            os.rename(f"{path}.part", path)
        yield
    finally:
        os.close(fd)


def copies_directory(verb: str, shared: str | None = None) -> contextlib.AbstractContextManager[str]:
    """Return a directory for copies of tables; none if the workers would not find them."""
    if shared is not None and not is_local(shared):
        return contextlib.nullcontext("")
    return work_directory(verb, None, shared)


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Turn an OSError of writing a working file into a WriteError with a hint."""
    try:
        yield
    except OSError as error:
        if isinstance(error, TarmacError):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = f"cannot write a temporary file: {error.strerror or error}."
        raise (DiskFull if full else WriteError)(what, url=path, hint=HINT) from error


def write_integers(path: str, numbers: Iterable[int]) -> None:
    """Write integers to an .npy file in bounded memory; their number is known only at the end."""
    plain, count = f"{path}.part", 0
    with disk_errors(path), open(plain, "wb") as file:
        batch = array("q")
        for number in numbers:
            batch.append(number)
            if len(batch) == _BATCH:
                file.write(batch)
                count, batch = count + len(batch), array("q")
        file.write(batch)
        count += len(batch)
    with disk_errors(path), open(path, "wb") as file, open(plain, "rb") as source:
        header = {"descr": "<i8", "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(file, header)
        while chunk := source.read(1 << 20):
            file.write(chunk)
    os.unlink(plain)
