"""Which pass over the data this is, agreed upon by all workers of a loader.

A loader (torch's DataLoader, or our own) makes its workers anew for each epoch, as copies of what the
main process holds, so a counter that lives in an object would say 0 for ever. Here the workers of one
main process keep the count together, in a small file that the main process removes. Outside of workers
nothing is shared.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import struct
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from typing import Any, Self

from tarmac.order.workers import current_place, loader_token
from tarmac.storage.locks import try_lock

__all__ = ["Passing", "PassCounter", "Source"]

_HEADER = struct.Struct("<qqq")
_PASSES = struct.Struct("<q")
_NO_RUN = -1
_MAIN_RUN = 0
_LARGEST = 1 << 20
_LOCK_SECONDS = 10.0


class _Count:
    """The number of the last pass, and how far each worker is in the run that is going on."""

    def __init__(self, first: int) -> None:
        self.restart(first)

    def restart(self, first: int) -> None:
        """Make `first` the number of the next pass of whoever comes next."""
        self.last = first - 1
        self.run = _NO_RUN
        self.base = first
        self.passes: list[int] = []

    def advance(self, worker: int, run: int) -> int:
        """Return the number of the pass that a worker begins.

        A run that was not seen before begins after the last pass of all, also for workers that were
        ended before they began theirs, or that made fewer passes than others.
        """
        if run != self.run:
            self.restart(self.last + 1)
            self.run = run
        self.passes.extend([0] * (worker + 1 - len(self.passes)))
        number = self.base + self.passes[worker]
        self.passes[worker] += 1
        self.last = max(self.last, number)
        return number

    def restart_one(self, worker: int, run: int, first: int) -> None:
        """Make `first` the number of the next pass of one worker, or of all if it is the first of its run."""
        if run != self.run:
            self.restart(first)
            self.run = run
        self.passes.extend([0] * (worker + 1 - len(self.passes)))
        self.passes[worker] = first - self.base
        self.last = max(self.last, first - 1)

    def to_bytes(self) -> bytes:
        return _HEADER.pack(self.last, self.run, self.base) + b"".join(map(_PASSES.pack, self.passes))

    def load(self, data: bytes) -> None:
        """Take over what `to_bytes` wrote; nothing from an empty file."""
        if len(data) >= _HEADER.size and len(data) % _PASSES.size == 0:
            self.last, self.run, self.base = _HEADER.unpack_from(data)
            self.passes = [number for (number,) in _PASSES.iter_unpack(data[_HEADER.size :])]


class PassCounter:
    """Count passes: 0, 1, 2, …

    In the workers of a loader, whatever their start method and however long they live, all workers of one
    run get the same numbers. Elsewhere every process counts for itself. Copies made by pickling for workers
    count together; copies made by `copy` count on their own.
    """

    def __init__(self, first: int = 0) -> None:
        self._name = secrets.token_hex(12)
        self._count = _Count(first)
        self._told: int | None = None
        weakref.finalize(self, _remove, self._name)

    def next(self, worker: int, token: int | None = None) -> int:
        """Begin a pass as the given worker and return its number.

        `token` is a number that the workers of one run share, and that is another for the next run;
        without one the loader is asked for it.
        """
        if self._told is not None:
            self._told += 1
            return self._told - 1
        run = loader_token() if token is None else token
        with self._current(create=run is not None) as count:
            return count.advance(worker, _MAIN_RUN if run is None else run + 1)

    def set(self, epoch: int, worker: int | None = None) -> None:
        """Make `epoch` the number of the next pass.

        Called in the main process, that is so for all its workers. Called in a worker, it is so for this
        object alone, which is how a pipeline there tells its stages; with the number of the worker, the
        next run of the loader counts on from there, which is how a worker resumes.
        """
        if epoch < 0:
            raise ValueError(f"passes are numbered from 0, got {epoch}")
        run = loader_token()
        if run is not None and worker is None:
            self._told = epoch
            return
        with self._current(create=run is not None) as count:
            if run is None or worker is None:
                count.restart(epoch)
            else:
                count.restart_one(worker, run + 1, epoch)

    @property
    def last(self) -> int:
        """The number of the last pass that was begun; one less than the first before there was any."""
        if self._told is not None:
            return self._told - 1
        with self._current(create=False) as count:
            return count.last

    @contextlib.contextmanager
    def _current(self, *, create: bool) -> Iterator[_Count]:
        """Give the count to change, from the file that the workers share if there is one."""
        try:
            fd = _open_locked(_path(self._name, _main_process()), create=create)
        except OSError:  # there is none, or no place for one: count here
            yield self._count
            return
        try:
            self._count.load(os.read(fd, _LARGEST))
            yield self._count
            with contextlib.suppress(OSError):  # a full disk: what was read still counts here
                os.lseek(fd, 0, os.SEEK_SET)
                os.ftruncate(fd, os.write(fd, self._count.to_bytes()))
        finally:
            os.close(fd)

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "_count": self._count, "_told": self._told, "process": os.getpid()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.pop("process") == os.getpid():  # a second one in this process is not a worker's
            state["_name"] = secrets.token_hex(12)
        self.__dict__.update(state)
        weakref.finalize(self, _remove, self._name)

    def __copy__(self) -> PassCounter:
        return PassCounter(self.last + 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> PassCounter:
        return self.__copy__()


class Passing:
    """Base of stages and sources that do something else in each pass."""

    def __init__(self) -> None:
        self._passes = PassCounter()

    def set_epoch(self, epoch: int) -> None:
        """Say which pass comes next; whoever is never told counts by itself."""
        self._passes.set(epoch)

    def _begin(self) -> int:
        """Begin a pass and return its number."""
        return self._passes.next(current_place().worker)

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._passes = self._passes.__copy__()
        return made


class Source(Passing):
    """Base of what a pipeline begins with; a torch DataLoader takes it for an IterableDataset."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class. `isinstance` asks for it, so this is where torch, if it is in use, is told about it."""
        data = sys.modules.get("torch.utils.data")
        if data is not None:
            data.IterableDataset.register(type(self))
        return type(self)


def _main_process() -> int:
    """The process whose workers count together: the parent of a worker, and otherwise this process."""
    if loader_token() is None:
        return os.getpid()
    parent = multiprocessing.parent_process()  # a fork server would be in between for getppid
    return os.getppid() if parent is None or parent.pid is None else parent.pid


def _path(name: str, process: int) -> str:
    return os.path.join(tempfile.gettempdir(), f"tarmac-passes-{name}-{process}")


def _open_locked(path: str, *, create: bool) -> int:
    """Open the file and wait until no one else is at it."""
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    fd = os.open(path, flags | (os.O_CREAT if create else 0), 0o600)
    deadline = time.monotonic() + _LOCK_SECONDS
    while not try_lock(fd):
        if time.monotonic() > deadline:
            os.close(fd)
            raise OSError(f"cannot lock {path}")
        time.sleep(0.001)
    return fd


def _remove(name: str) -> None:
    """Remove the file of this process's workers; those of other processes are theirs."""
    with contextlib.suppress(OSError):
        os.unlink(_path(name, os.getpid()))
