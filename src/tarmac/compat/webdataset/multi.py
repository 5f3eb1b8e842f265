"""`webdataset.multi`: read one dataset in several processes, without torch.

Each worker sends its items through its own pipe, so that workers share nothing that a dying worker could block, and
its death is noticed immediately. A worker waits while its pipe is full, which bounds the prefetch.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import pickle
import random
import secrets
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from tarmac.errors import WorkerFailed
from tarmac.runtime.processes import close_parent_ends, keep_in_parent, sendable_error, wait_for_exit
from tarmac.runtime.seeds import make_seed
from tarmac.runtime.worker_info import become_worker

_log = logging.getLogger("tarmac")
_GRACE = 2.0
"""Seconds in which a worker may exit by itself before it is terminated."""


@dataclass(eq=False, repr=False)
class MultiLoader:
    """Iterate over a dataset in several processes; a loader for programs without torch.

    Each worker reads the shards that `split_by_worker` assigns to it. Items are taken from the workers in turn, so
    that the order is reproducible. Each iteration starts new workers, and terminates them when it ends or is
    closed. An error in a worker is raised here; a worker that dies raises WorkerFailed.

    An iteration terminates the previous one unless `nokill` is set. `verbose` logs the start and end of workers.
    `start_method` is one of multiprocessing. `prefix` is accepted for compatibility and has no effect.

    The random generators of Python, numpy and torch are seeded differently in each worker, from Python's generator in
    this process.
    """

    dataset: Iterable[Any]
    workers: int = 4
    verbose: bool = False
    nokill: bool = False
    prefix: str = ""
    _: KW_ONLY
    start_method: str | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"`workers` must be at least 1, got {self.workers}")
        self._context: Any = multiprocessing.get_context(self.start_method)
        self._runs: list[_Run] = []

    @property
    def pids(self) -> list[Any]:
        """The worker processes of the current iterations."""
        return [worker.process for run in self._runs for worker in run.workers]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the dataset in all future workers."""
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def kill(self) -> None:
        """Terminate all workers."""
        while self._runs:
            self._runs.pop().close()

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
    """A worker process and the pipe that it writes to."""

    number: int
    process: Any
    pipe: Connection[Any, Any]

    def death(self) -> WorkerFailed:
        """Return the error for a process that exited too early."""
        self.process.join(_GRACE)
        code = self.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
        return WorkerFailed(
            f"worker {self.number} (process {self.process.pid}) {how} before it finished.",
            hint="use fewer workers, if the system log says that memory ran out.",
        )


class _Run:
    """The workers of one iteration."""

    def __init__(self, verbose: bool) -> None:
        self.workers: list[_Worker] = []
        self._verbose = verbose
        self._closed = False

    def start(self, dataset: Iterable[Any], count: int, context: Any) -> None:
        """Start the workers. They share a token, so that they agree on the epoch."""
        token, seed = secrets.randbits(62), random.getrandbits(62)
        for number in range(count):
            receiver, sender = context.Pipe(duplex=False)
            keep_in_parent(receiver)
            arguments = (dataset, sender, number, count, token, make_seed("worker", seed, number))
            process = context.Process(target=_work, args=arguments, daemon=True)
            try:
                process.start()
            except BaseException:
                receiver.close()
                raise
            finally:
                sender.close()  # the pipe ends when the worker, which has the only other copy, exits
            self.workers.append(_Worker(number, process, receiver))
            self._log("worker %d is process %d", number, process.pid)

    def items(self) -> Iterator[Any]:
        """Yield an item of each worker in turn until all are finished."""
        running = list(self.workers)
        watched = {worker.process.sentinel: worker for worker in running}
        while running:
            for worker in list(running):
                kind, value = self._receive(worker, watched)
                if kind == "item":
                    yield value
                elif kind == "error":
                    raise value
                else:
                    running.remove(worker)
                    self._log("worker %d has finished", worker.number)

    def _receive(self, worker: _Worker, watched: dict[Any, _Worker]) -> Any:
        """Return the next message of a worker. Raise as soon as any worker dies."""
        while not self._closed:
            ready = wait([worker.pipe, *watched])
            for sentinel in set(ready) & watched.keys():
                other = watched.pop(sentinel)
                other.process.join(_GRACE)  # the sentinel is ready a moment before the exit status
                if other.process.exitcode != 0:
                    raise other.death()
            if worker.pipe in ready:
                try:
                    return worker.pipe.recv()
                except (EOFError, OSError):
                    raise worker.death() from None
        raise WorkerFailed(
            "a later iteration terminated the workers of this one.",
            hint="set nokill=True for simultaneous iterations.",
        )

    def close(self) -> None:
        """Stop the workers: first by closing their pipes, then with signals."""
        self._closed = True
        for worker in self.workers:
            worker.pipe.close()
        for stop in ("terminate", "kill"):
            for process in wait_for_exit((worker.process for worker in self.workers), _GRACE):
                getattr(process, stop)()
        for worker in self.workers:
            worker.process.join()
            worker.process.close()
        self.workers = []

    def _log(self, text: str, *args: object) -> None:
        if self._verbose:
            _log.info(text, *args)


class _Closed(Exception):
    """The loader closed the pipe."""


def _work(
    dataset: Iterable[Any], pipe: Connection[Any, Any], number: int, count: int, token: int, seed: int
) -> None:
    """Run a worker: send its part of the dataset, item by item."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the loader handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handler of the program
    close_parent_ends()
    become_worker(number, count, token)
    _seed_generators(seed)
    with contextlib.suppress(_Closed):
        try:
            for item in dataset:
                _send(pipe, "item", item)
        except _Closed:
            raise
        except Exception as error:
            _send(pipe, "error", sendable_error(error, f"worker {number}"))
        else:
            _send(pipe, "end")


def _seed_generators(seed: int) -> None:
    """Seed the generators that functions of the pipeline may use; forked workers inherit identical ones."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def _send(pipe: Connection[Any, Any], kind: str, value: object = None) -> None:
    # Not pipe.send: torch changes it to send tensors in shared memory, which is freed when the worker exits.
    data = pickle.dumps((kind, value), pickle.HIGHEST_PROTOCOL)
    try:
        pipe.send_bytes(data)
    except BrokenPipeError:
        raise _Closed from None
