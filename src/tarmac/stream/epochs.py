"""Which pass over the data this is, agreed upon by all workers of a loader.

A loader (torch's DataLoader, or our own) makes its workers anew for each epoch, as copies of what the
main process holds, so a counter that lives in an object would say 0 for ever. Here the workers of one
main process keep the count together, in a small file that the main process removes. Outside of workers
nothing is shared.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from tarmac.runtime.worker_info import current_worker_info, loader_token
from tarmac.storage.locks import try_lock

__all__ = ["Epoch", "EpochAware", "EpochCounter", "StreamSource"]

_LARGEST = 1 << 20
_LOCK_SECONDS = 10.0
_KNOWN_RUNS = 16
"""Runs of loaders that are remembered: workers of a broken-off run may begin after those of the next."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The pass that a reader begins."""

    number: int
    """What this reader's own order follows from."""
    agreed: int | None
    """A number that is the same for all readers, on which their shares may depend; None if unknown."""
    explicit: bool = False
    """Whether `set_epoch` gave it, so that all ranks agree, and not only the workers of one loader."""
    shared: bool = False
    """Whether a split follows, so that everything in this pass must be the same for all readers."""


class _Count:
    """The number of the last pass, what `set_epoch` said, and how far the workers of each run are."""

    def __init__(self, first: int) -> None:
        self.last = first - 1
        self.user_epoch: int | None = None
        self.runs: dict[int, _Run] = {}
        self.compared: list[int] = [0, -1]  # how many epochs were compared with other ranks, and the last

    def compare(self, epoch: int) -> int:
        """Return the number of an epoch among those that were compared: a new one if it is another."""
        if self.compared[1] != epoch:
            self.compared = [self.compared[0] + 1, epoch]
        return self.compared[0]

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the number of the next pass of whoever comes next."""
        self.last, self.user_epoch, self.runs = epoch - 1, epoch, {}

    def restart(self, first: int, user_epoch: int | None) -> None:
        """Make `first` the number of the next pass, as it was when a state was saved."""
        self.last, self.user_epoch, self.runs = first - 1, user_epoch, {}

    def advance(self, worker: int, run: int | None) -> int:
        """Return the number of the pass that a worker of a run begins, or the main process, which has none.

        A run that was not seen before begins after the last pass of all, also for workers that were
        ended before they began theirs, or that made fewer passes than others.
        """
        number = self.last + 1 if run is None else self._run(run, self.last + 1).next(worker)
        self.last = max(self.last, number)
        return number

    def restart_one(self, worker: int, run: int, first: int, user_epoch: int | None) -> None:
        """Make `first` the number of the next pass of one worker, or of all if it is the first of its run."""
        current = self._run(run, first)
        current.passes.extend([0] * (worker + 1 - len(current.passes)))
        current.passes[worker] = first - current.base
        self.last, self.user_epoch = max(self.last, first - 1), user_epoch

    def base(self, run: int) -> int:
        """The number of the first pass of a run, which its workers agree on."""
        return self.runs[run].base

    def _run(self, run: int, first: int) -> _Run:
        if run not in self.runs:
            self.runs[run] = _Run(first, [])
            for oldest in list(self.runs)[:-_KNOWN_RUNS]:
                del self.runs[oldest]
        return self.runs[run]

    def to_bytes(self) -> bytes:
        runs = [[token, run.base, run.passes] for token, run in self.runs.items()]
        return json.dumps([self.last, self.user_epoch, runs, self.compared]).encode()

    def load(self, data: bytes) -> None:
        """Take over what `to_bytes` wrote; nothing from an empty file."""
        if data:
            self.last, self.user_epoch, runs, self.compared = json.loads(data)
            self.runs = {token: _Run(base, passes) for token, base, passes in runs}


@dataclass(slots=True)
class _Run:
    """The workers of one run of a loader: the number that they began with, and the passes each has begun."""

    base: int
    passes: list[int]

    def next(self, worker: int) -> int:
        self.passes.extend([0] * (worker + 1 - len(self.passes)))
        self.passes[worker] += 1
        return self.base + self.passes[worker] - 1


class EpochCounter:
    """Count passes: 0, 1, 2, …

    In the workers of a loader, whatever their start method and however long they live, all workers of one
    run get the same numbers. Elsewhere every process counts for itself. Copies made by pickling for workers
    count together; copies made by `copy` count on their own.
    """

    def __init__(self, first: int = 0) -> None:
        self._name = secrets.token_hex(12)
        self._count = _Count(first)
        self._here: Epoch | None = None
        self.epochs_set = 0
        weakref.finalize(self, _remove, self._name)

    def next(self, worker: int, token: int | None = None) -> int:
        """Begin a pass as the given worker and return its number.

        `token` is a number that the workers of one run share, and that is another for the next run;
        without one the loader is asked for it.
        """
        return self.begin(worker, token).number

    def begin(self, worker: int, token: int | None = None) -> Epoch:
        """Begin a pass as the given worker, and return what its order and its share follow from."""
        if self._here is not None:
            turn, self._here = self._here, replace(self._here, number=self._here.number + 1)
            return turn
        run = loader_token() if token is None else token
        with self._current(create=run is not None) as count:
            number = count.advance(worker, run)
            if count.user_epoch is not None:
                return Epoch(number, count.user_epoch, explicit=True)
            return Epoch(number, None if run is None else count.base(run))

    def set(self, epoch: int) -> None:
        """Make `epoch` the number of the next pass, and what the shares of all readers follow from.

        Called in the main process, that is so for all its workers. Called in a worker, it is so for this
        object alone.
        """
        if epoch < 0:
            raise ValueError(f"passes are numbered from 0, got {epoch}")
        if loader_token() is not None:
            self.dictate(Epoch(epoch, epoch, explicit=True))
            return
        self._here = None
        self.epochs_set += 1
        with self._current(create=False) as count:
            count.set_epoch(epoch)

    def dictate(self, turn: Epoch) -> None:
        """Begin the next pass of this object, in this process, as the pipeline around it says."""
        self._here = turn

    def resume(self, turn: Epoch, worker: int) -> None:
        """Count on from a saved pass; the next run of a loader counts on from there, too."""
        if self._here is not None:
            self._here = turn
            return
        run, user_epoch = loader_token(), turn.agreed if turn.explicit else None
        with self._current(create=run is not None) as count:
            if run is None:
                count.restart(turn.number, user_epoch)
            else:
                count.restart_one(worker, run, turn.number, user_epoch)

    def compared(self, epoch: int) -> int:
        """Return the number of an epoch among those that were compared with other ranks."""
        with self._current(create=loader_token() is not None) as count:
            return count.compare(epoch)

    @property
    def last(self) -> int:
        """The number of the last pass that was begun; one less than the first before there was any."""
        if self._here is not None:
            return self._here.number - 1
        with self._current(create=False) as count:
            return count.last

    @property
    def user_epoch(self) -> int | None:
        """What `set_epoch` said last, in the main process."""
        if self._here is not None:
            return self._here.agreed if self._here.explicit else None
        with self._current(create=False) as count:
            return count.user_epoch

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
        return {
            "_name": self._name,
            "_count": self._count,
            "_here": self._here,
            "epochs_set": self.epochs_set,
            "process": os.getpid(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.pop("process") == os.getpid():  # a second one in this process is not a worker's
            state["_name"] = secrets.token_hex(12)
        self.__dict__.update(state)
        weakref.finalize(self, _remove, self._name)

    def __copy__(self) -> EpochCounter:
        return EpochCounter(self.last + 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> EpochCounter:
        return self.__copy__()


class EpochAware:
    """Base of stages and sources that do something else in each pass."""

    shared = False
    """Whether the stage is before a split, where all readers must do the same; set by the pipeline."""
    per_reader = False
    """Whether each reader draws for itself, so that the number of its own pass counts everywhere."""

    def __init__(self) -> None:
        self._epochs = EpochCounter()

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next. Without it, passes are counted: 0, 1, 2, …

        It is the caller's promise that all ranks say the same: the shares of readers may follow from it.
        """
        self._epochs.set(epoch)

    @property
    def passes(self) -> EpochCounter:
        """The counter of passes."""
        return self._epochs

    def _begin(self) -> int:
        """Begin a pass and return its number."""
        return self._epochs.next(current_worker_info().worker)

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._epochs = self._epochs.__copy__()
        return made


class StreamSource(EpochAware):
    """Base of what a pipeline begins with; a torch DataLoader takes it for an IterableDataset."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class. `isinstance` asks for it, so this is where torch, if it is in use, learns about it."""
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
    """Open the file and wait until no one else is at it.

    It lies where all users may put files. One that another user has put there is not ours to count in.
    """
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    fd = os.open(path, flags | (os.O_CREAT if create else 0), 0o600)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid != os.geteuid():
        os.close(fd)
        raise OSError(f"{path} is not a file of this user")
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
