"""MultiLoader: several processes read one dataset, each its share, without torch.

Every worker has a pipe of its own to the loader, so that nothing is shared that a dying worker could hold on
to, and its end shows at once. A pipe that is full makes its worker wait: what is read ahead is bounded.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import multiprocessing
import pickle
import random
import secrets
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from tarmac.errors import WorkerFailed
from tarmac.runtime.seeds import make_seed
from tarmac.runtime.worker_info import become_worker

__all__ = ["MultiLoader"]

_log = logging.getLogger("tarmac")
_GRACE = 2.0
"""Seconds for a worker to end by itself, before it is ended."""

# Forked workers close these: while one is open anywhere, its worker does not see that it was closed.
_receivers: weakref.WeakSet[Connection[Any, Any]] = weakref.WeakSet()


class MultiLoader:
    """Iterate over a dataset in several processes; a loader for programs without torch.

    Each worker reads its share, as `split_by_worker` deals it out; their items come in turn, so that two runs
    agree. Each iteration starts its workers anew, and ends them when it is over or closed. An error in a
    worker is raised here; a worker that dies is a `WorkerFailed`.

    An iteration ends the one before, unless `nokill` is set. `verbose` logs the beginning and the end of
    workers. `start_method` is one of multiprocessing's. `prefix` is taken for the sake of programs that give
    it: there are no sockets here that would need a place.

    The random numbers of Python, numpy and torch differ between workers, and follow from Python's here.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        workers: int = 4,
        verbose: bool = False,
        nokill: bool = False,
        prefix: str = "",
        *,
        start_method: str | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"a loader needs at least one worker, got workers={workers}")
        self.dataset, self.workers = dataset, workers
        self.verbose, self.nokill, self.prefix = verbose, nokill, prefix
        self._context: Any = multiprocessing.get_context(start_method)
        self._runs: list[_Run] = []

    @property
    def pids(self) -> list[Any]:
        """The processes of iterations that are going on."""
        return [worker.process for run in self._runs for worker in run.workers]

    def set_epoch(self, epoch: int) -> None:
        """Tell the dataset, in all workers to come, which pass this is."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def kill(self) -> None:
        """End all workers."""
        for run in list(self._runs):
            run.close()
            self._runs.remove(run)

    def __iter__(self) -> Iterator[Any]:
        if not self.nokill:
            self.kill()
        run = _Run(self.verbose)
        self._runs.append(run)
        try:
            run.start(self.dataset, self.workers, self._context)
            yield from run.items()
        finally:
            run.close()
            if run in self._runs:
                self._runs.remove(run)


@dataclass(frozen=True, slots=True)
class _Worker:
    """A process, and where its items come from."""

    number: int
    process: Any
    pipe: Connection[Any, Any]

    def died(self) -> WorkerFailed:
        """Say how the process has ended."""
        self.process.join(_GRACE)
        code = self.process.exitcode or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
        return WorkerFailed(
            f"worker {self.number} (process {self.process.pid}) {how} before it was done.",
            hint="look at the system's log: a process that takes too much memory is ended by signal 9.",
        )


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error on its way out of a worker."""

    error: Exception
    trace: str


class _End:
    """The last thing that a worker sends."""


class _Run:
    """The workers of one iteration."""

    def __init__(self, verbose: bool) -> None:
        self.workers: list[_Worker] = []
        self._verbose = verbose
        self._closed = False

    def start(self, dataset: Iterable[Any], count: int, context: Any) -> None:
        """Start the workers, which share a token, to count their passes together."""
        token, seed = secrets.randbits(62), random.getrandbits(62)
        for number in range(count):
            ours, theirs = context.Pipe(duplex=False)
            _receivers.add(ours)
            arguments = (dataset, theirs, number, count, token, make_seed("worker", seed, number))
            process = context.Process(target=_work, args=arguments, daemon=True)
            try:
                process.start()
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()  # the worker's is then the only one, and its end is the end of the pipe
            self.workers.append(_Worker(number, process, ours))
            self._tell("worker %d is process %d", number, process.pid)

    def items(self) -> Iterator[Any]:
        """Take an item of each worker in turn, until all have come to their end."""
        left = list(self.workers)
        watched = {worker.process.sentinel: worker for worker in left}
        while left:
            for worker in list(left):
                item = self._received(worker, watched)
                if isinstance(item, _End):
                    left.remove(worker)
                    self._tell("worker %d has finished", worker.number)
                elif isinstance(item, _Failure):
                    item.error.add_note(f"in worker {worker.number}:\n{item.trace}")
                    raise item.error
                else:
                    yield item

    def _received(self, worker: _Worker, watched: dict[Any, _Worker]) -> Any:
        """Wait for the next item of a worker, and with an eye on the others, whose death must not wait."""
        while not self._closed:
            ready = wait([worker.pipe, *watched])
            for sentinel in set(ready) & watched.keys():
                other = watched.pop(sentinel)
                other.process.join(_GRACE)  # that a process ends shows a moment before its status does
                if other.process.exitcode != 0:
                    raise other.died()
            if worker.pipe in ready:
                try:
                    return worker.pipe.recv()
                except (EOFError, OSError):
                    raise worker.died() from None
        raise WorkerFailed(
            "the workers of this iteration were ended.", hint="nokill=True, for iterations side by side."
        )

    def close(self) -> None:
        """End the workers: those that find their pipe closed end by themselves, the others are ended."""
        self._closed = True
        for worker in self.workers:
            worker.pipe.close()
        for end in ("terminate", "kill"):
            deadline = time.monotonic() + _GRACE
            for worker in self.workers:
                worker.process.join(max(0.0, deadline - time.monotonic()))
                if worker.process.exitcode is None:
                    getattr(worker.process, end)()
        for worker in self.workers:
            worker.process.join()
            worker.process.close()
        self.workers = []

    def _tell(self, text: str, *args: object) -> None:
        if self._verbose:
            _log.info(text, *args)


class _Unwanted(Exception):
    """The loader wants no more."""


def _work(
    dataset: Iterable[Any], pipe: Connection[Any, Any], number: int, count: int, token: int, seed: int
) -> None:
    """What a worker does: send its share of the dataset, item by item."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the loader's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler of the program is not meant for its workers
    for receiver in list(_receivers):
        receiver.close()
    become_worker(number, count, token)
    _seed_generators(seed)
    with contextlib.suppress(_Unwanted):
        try:
            for item in dataset:
                _send(pipe, item)
        except _Unwanted:
            raise
        except Exception as error:
            _send(pipe, _failure(error))
        else:
            _send(pipe, _End())


def _seed_generators(seed: int) -> None:
    """Part the random numbers of functions in the pipeline, which forked workers would all have alike."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _send(pipe: Connection[Any, Any], item: object) -> None:
    # Not pipe.send: torch has taught that one to leave tensors in memory that goes away with the worker.
    data = pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    try:
        pipe.send_bytes(data)
    except BrokenPipeError:
        raise _Unwanted from None


def _failure(error: Exception) -> _Failure:
    """Pack an error; one that does not survive the way is replaced by its words."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.dumps(error)
        copy.copy(error)  # is put together as it will be when it arrives
    except Exception:
        error = WorkerFailed(f"a worker failed with {type(error).__name__}: {error}")
    return _Failure(error, trace)
