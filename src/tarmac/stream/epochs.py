"""Count epochs, and make all workers of a data loader agree on the number.

Everything that makes streams work with restarted workers is in this file:

- torch's DataLoader starts new workers for each epoch, with copies of the objects in the main process. A
  counter in such an object would be 0 in every epoch. Therefore the workers of one main process share a small
  locked file in the temporary directory, which the main process removes (`EpochCounter`). Outside of workers
  no file is written.
- torch accepts a dataset without a length only if it is an instance of `IterableDataset`. tarmac must not import
  torch for that, so `StreamSource.__class__` registers the class with torch when `isinstance` first asks.

`tarmac.runtime.worker_info` identifies the worker and rank of a process, whose process-wide state is set
when a pipeline arrives in a worker.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import operator
import os
import secrets
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from tarmac.errors import UsageError
from tarmac.extras import import_extra
from tarmac.runtime.worker_info import current_worker_info, loader_token
from tarmac.steps.stage import Epoch, PipelineStage
from tarmac.storage.locks import try_lock

if TYPE_CHECKING:
    # torch's DataLoader is annotated with torch's own classes; at run time torch is not needed.
    from torch.utils.data.dataset import IterableDataset

    _IterableDataset = IterableDataset[Any]
else:
    _IterableDataset = object

_MAX_FILE_BYTES = 1 << 20
_LOCK_TIMEOUT = 10.0
_MAX_RUNS = 16
"""Runs of loaders to remember: workers of an interrupted run may begin after those of the next."""


class EpochAware(PipelineStage):
    """Base class of stages and sources that differ from epoch to epoch."""

    def __init__(self) -> None:
        self._epochs = EpochCounter()

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch; without it, epochs are counted: 0, 1, 2, …

        Call it with the same number on all ranks: the split of shards may depend on it.
        """
        self._epochs.set(epoch)

    def begin_epoch(self, epoch: Epoch) -> None:
        """Make `epoch` the next one of this object, in this process."""
        self._epochs.assign(epoch)

    @property
    def epoch_counter(self) -> EpochCounter:
        """The counter of epochs."""
        return self._epochs

    def _next_epoch(self) -> Epoch:
        return self._epochs.begin(current_worker_info().worker)

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._epochs = self._epochs.__copy__()
        return copied


class NumberedEpochs(EpochAware):
    """Base class of stages with an `epoch` that programs read and set: the number of the last epoch.

    In a pipeline, the stage counts with the pipeline, from the number that the program gave. Before a split between
    readers, the number stays until the program gives another: readers iterate differently often.
    """

    def __init__(self, first: int = 0) -> None:
        super().__init__()
        self._ahead = first  # of the surrounding pipeline
        self._next: int | None = None

    @property
    def epoch(self) -> int:
        """The number of the last epoch; -1 before the first."""
        return self._epochs.last + self._ahead if self._next is None else self._next - 1

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._next = epoch + 1

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._ahead, self._next = 0, None

    def begin_epoch(self, epoch: Epoch) -> None:
        super().begin_epoch(epoch)
        self._number_of(epoch)

    def _next_number(self) -> int:
        return self._number_of(self._next_epoch())

    def _number_of(self, epoch: Epoch) -> int:
        """Return the number that the stage has in an epoch of the pipeline."""
        if self._next is not None:
            if epoch.shared and current_worker_info().count > 1:
                return self._next
            self._ahead, self._next = self._next - epoch.number, None
        return epoch.number + self._ahead

    def seeds(self) -> Any:
        return [self._ahead, self._next]

    def load_seeds(self, seeds: Any) -> None:
        ahead, following = seeds
        self._ahead, self._next = (
            operator.index(ahead),
            None if following is None else operator.index(following),
        )


class StreamSource(EpochAware, _IterableDataset):
    """Base class of first stages: iterables that a torch DataLoader accepts as an IterableDataset."""

    def run(self) -> Any:
        """Return the iterable itself."""
        return self

    def __add__(self, other: Any) -> Any:
        """Return a torch dataset of both, one after the other."""
        torch = import_extra("torch", "torch", "the sum of datasets")
        return torch.utils.data.ChainDataset([self, other])

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class. `isinstance` reads it, so it is registered with torch here, if the program uses torch."""
        data = sys.modules.get("torch.utils.data")
        if data is not None:
            data.IterableDataset.register(type(self))
        return type(self)


class EpochCounter:
    """Count epochs: 0, 1, 2, …

    All workers of one run of a loader get the same numbers, whatever their start method and however long they
    live. Other processes count on their own. Copies pickled for workers count together; copies made by `copy`
    count on their own.
    """

    def __init__(self, first: int = 0) -> None:
        self._name = secrets.token_hex(12)
        self._counts = _Counts(first)
        self._assigned: Epoch | None = None
        self.epochs_set: int = 0
        """The number of calls of `set` in the main process."""
        weakref.finalize(self, _remove, self._name)

    def begin(self, worker: int, token: int | None = None) -> Epoch:
        """Begin an epoch as the given worker.

        `token` is a number that the workers of one run share, different for each run. By default it comes from
        the loader.
        """
        if self._assigned is not None:
            epoch, self._assigned = self._assigned, replace(self._assigned, number=self._assigned.number + 1)
            return epoch
        run = loader_token() if token is None else token
        with self._current(create=run is not None) as counts:
            number = counts.advance(worker, run)
            if counts.user_epoch is not None:
                return Epoch(number, counts.user_epoch, explicit=True)
            return Epoch(number, None if run is None else counts.base(run))

    def set(self, epoch: int) -> None:
        """Make `epoch` the number of the next epoch, and the number that the split of shards depends on.

        In the main process this applies to all its workers, in a worker to this object alone.
        """
        if epoch < 0:
            raise UsageError(f"expected 0 or more, got {epoch}.", field="epoch")
        if loader_token() is not None:
            self.assign(Epoch(epoch, epoch, explicit=True))
            return
        self._assigned = None
        self.epochs_set += 1
        with self._current(create=False) as counts:
            counts.restart(epoch, epoch)

    def assign(self, epoch: Epoch) -> None:
        """Make `epoch` the next one of this object, in this process, as the surrounding pipeline demands."""
        self._assigned = epoch

    def resume(self, epoch: Epoch, worker: int) -> None:
        """Continue counting at a saved epoch, also in the next runs of a loader."""
        if self._assigned is not None:
            self._assigned = epoch
            return
        run, user_epoch = loader_token(), epoch.agreed if epoch.explicit else None
        with self._current(create=run is not None) as counts:
            if run is None:
                counts.restart(epoch.number, user_epoch)
            else:
                counts.restart_worker(worker, run, epoch.number, user_epoch)

    def compared(self, facts: str) -> int:
        """Return the number of an epoch, by its facts, among those that were compared with other ranks."""
        with self._current(create=loader_token() is not None) as counts:
            return counts.compare(facts)

    @property
    def last(self) -> int:
        """The number of the last epoch that began; one less than the first if none has."""
        if self._assigned is not None:
            return self._assigned.number - 1
        with self._current(create=False) as counts:
            return counts.last

    @property
    def user_epoch(self) -> int | None:
        """The epoch of the last `set` in the main process."""
        if self._assigned is not None:
            return self._assigned.agreed if self._assigned.explicit else None
        with self._current(create=False) as counts:
            return counts.user_epoch

    @contextlib.contextmanager
    def _current(self, *, create: bool) -> Iterator[_Counts]:
        """Yield the counts to read and change; they are in the shared file, if there is one."""
        try:
            fd = _open_locked(_path(self._name, _main_process()), create=create)
        except OSError:  # no file, or none can be created: count in this process
            yield self._counts
            return
        try:
            if data := os.read(fd, _MAX_FILE_BYTES):  # a new file is empty
                vars(self._counts).update(json.loads(data))
            yield self._counts
            with contextlib.suppress(OSError):  # the disk is full: the counts still hold in this process
                os.lseek(fd, 0, os.SEEK_SET)
                os.ftruncate(fd, os.write(fd, json.dumps(vars(self._counts)).encode()))
        finally:
            os.close(fd)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "process": os.getpid()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.pop("process") == os.getpid():  # a copy in the same process is not that of a worker
            state["_name"] = secrets.token_hex(12)
        self.__dict__.update(state)
        weakref.finalize(self, _remove, self._name)

    def __copy__(self) -> EpochCounter:
        return EpochCounter(self.last + 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> EpochCounter:
        return self.__copy__()


class _Counts:
    """The last epoch, the epoch that `set_epoch` gave, and the progress of the workers of each run."""

    def __init__(self, first: int) -> None:
        self.last = first - 1
        self.user_epoch: int | None = None
        # By token, as a string: the first epoch of the run, and the next one of each worker.
        self.runs: dict[str, list[int]] = {}
        self.compared: tuple[int, str] = (
            0,
            "",
        )  # the number of epochs compared with other ranks, and the last one

    def compare(self, facts: str) -> int:
        """Return the number of an epoch among those compared; a new number if it is not the last one."""
        if self.compared[1] != facts:
            self.compared = self.compared[0] + 1, facts
        return self.compared[0]

    def restart(self, first: int, user_epoch: int | None) -> None:
        """Make `first` the number of the next epoch, of any run."""
        self.last, self.user_epoch, self.runs = first - 1, user_epoch, {}

    def advance(self, worker: int, run: int | None) -> int:
        """Return the number of the epoch that a worker of a run begins; the main process has no run.

        A new run begins after the last epoch of all workers, including those that were terminated early.
        """
        number = self.last + 1
        if run is not None:
            epochs = self._run(run, number, worker)
            number = epochs[worker + 1]
            epochs[worker + 1] += 1
        self.last = max(self.last, number)
        return number

    def restart_worker(self, worker: int, run: int, first: int, user_epoch: int | None) -> None:
        """Make `first` the number of a worker's next epoch; of all workers, if it is the first of its run."""
        self._run(run, first, worker)[worker + 1] = first
        self.last, self.user_epoch = max(self.last, first - 1), user_epoch

    def base(self, run: int) -> int:
        """Return the number of the first epoch of a run."""
        return self.runs[str(run)][0]

    def _run(self, run: int, first: int, worker: int) -> list[int]:
        """Return the epochs of a run, which begins with `first` if it is new, including those of a worker."""
        epochs = self.runs.setdefault(str(run), [first])
        epochs += epochs[:1] * (worker + 2 - len(epochs))
        for oldest in list(self.runs)[:-_MAX_RUNS]:
            del self.runs[oldest]
        return epochs


def _main_process() -> int:
    """Return the process whose workers count together: the parent of a worker, else this process."""
    if loader_token() is None:
        return os.getpid()
    parent = multiprocessing.parent_process()  # getppid would name the fork server
    return os.getppid() if parent is None or parent.pid is None else parent.pid


def _path(name: str, process: int) -> str:
    return os.path.join(tempfile.gettempdir(), f"tarmac-epochs-{name}-{process}")


def _open_locked(path: str, *, create: bool) -> int:
    """Open and lock the file. Raise OSError for a file that another user may have put there."""
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
    fd = os.open(path, flags | (os.O_CREAT if create else 0), 0o600)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid != os.geteuid():
        os.close(fd)
        raise OSError(f"{path} is not a file of this user")
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while not try_lock(fd):
        if time.monotonic() > deadline:
            os.close(fd)
            raise OSError(f"cannot lock {path}")
        time.sleep(0.001)
    return fd


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(_path(name, os.getpid()))
