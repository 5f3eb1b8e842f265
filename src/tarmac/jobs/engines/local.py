"""Units in processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import connection
from typing import Any, TypeVar

from tarmac.errors import WorkerDied
from tarmac.jobs.run import Finished, Work
from tarmac.jobs.task import Outcome, Unit

__all__ = ["LocalEngine", "result_of", "worker_pool"]

T = TypeVar("T")
R = TypeVar("R")

LOOK_UP = 0.5
"""Seconds after which one that waits sees whether it is to end."""
PATIENCE = 3.0
"""Seconds that a worker gets to end by itself."""
PR_SET_PDEATHSIG = 1
AHEAD = 2
"""Units that are handed out to each process in advance, so that none waits for the next."""


class LocalEngine:
    """Run units in so many processes of this machine; with one, in this process."""

    def __init__(self, processes: int = 1) -> None:
        if processes < 1:
            raise ValueError(f"a job needs a process at least, got {processes}")
        self.processes = processes

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Finished]:
        """Do all units, and yield each with what came of it, as they end."""
        waiting = iter(units)
        first = list(islice(waiting, 2))
        if self.processes == 1 or len(first) < 2:
            yield from _one_by_one(work, first, waiting)
            return
        with worker_pool(self.processes, work) as submit:
            running: dict[Future[Outcome], Unit] = {}
            outcome: Outcome | Exception
            for unit in first:
                running[submit(unit)] = unit
            while True:
                for unit in islice(waiting, max(AHEAD * self.processes - len(running), 0)):
                    running[submit(unit)] = unit
                if not running:
                    return
                # Not for ever: a signal that another thread got would not wake this one.
                for future in wait(running, LOOK_UP, return_when=FIRST_COMPLETED).done:
                    outcome = result_of(future)
                    yield running.pop(future), outcome


@contextlib.contextmanager
def worker_pool(processes: int, work: Callable[[T], R]) -> Iterator[Callable[[T], Future[R]]]:
    """Processes that do some work on what they are handed; they end with the block, or with this process."""
    with ProcessPoolExecutor(processes, _context(), _in_worker, (work,)) as pool:

        def submit(item: T) -> Future[R]:
            try:
                with _signals_blocked():  # of a process that is started now, until it can tell what to do
                    return pool.submit(_do, item)
            except BrokenProcessPool:
                raise _died() from None

        try:
            yield submit
        except BaseException:
            # Its own processes, which it does not tell: others of ours may have been started meanwhile.
            _interrupt(list((pool._processes or {}).values()))
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _one_by_one(work: Work, first: list[Unit], rest: Iterator[Unit]) -> Iterator[Finished]:
    for units in (first, rest):
        for unit in units:
            try:
                outcome: Outcome | Exception = work(unit)
            except Exception as error:
                outcome = error
            yield unit, outcome


def result_of(future: Future[R]) -> R | Exception:
    """What a worker's work gave, or the error it ended with."""
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        return _died()
    if isinstance(error, Exception):
        return error
    if error is not None:  # Ctrl-C reached the worker before us
        raise error
    return future.result()


def _died() -> WorkerDied:
    return WorkerDied(
        "a process that worked on this job was killed or ended at once.",
        hint="run the same command again; if memory ran out, with fewer processes.",
    )


def _context() -> Any:
    """How to start processes: by fork, which takes no time, unless something here does not survive it."""
    alone = threading.active_count() == 1 and "obstore" not in sys.modules and "torch" not in sys.modules
    return multiprocessing.get_context("fork" if alone and sys.platform == "linux" else "spawn")


class _Worker:
    """What a worker process knows: its work, sent once, and whether it is doing it."""

    work: Callable[[Any], Any]
    busy = False
    interrupted = False


def _in_worker(work: Callable[[Any], Any]) -> None:
    """Begin a worker, and see to it that it ends when its parent does, however that ended."""
    _Worker.work = staticmethod(work)
    signal.signal(signal.SIGINT, _on_interrupt)
    # The pool terminates all workers as soon as one has ended; that must not disturb their clearing up.
    signal.signal(signal.SIGTERM, _on_interrupt)
    with _signals_blocked():
        threading.Thread(target=_end_with_parent, name="tarmac-parent", daemon=True).start()
    _die_with_parent()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """For a thread that is started meanwhile: a signal that it took would not wake the work."""
    if sys.platform == "win32":
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def _die_with_parent() -> None:
    """On Linux, end in the same moment, so that whoever runs the job again meets nobody."""
    if sys.platform == "linux":
        import ctypes

        parent = multiprocessing.parent_process()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent is not None and os.getppid() != parent.pid:
            os._exit(1)  # it was too late for that


def _do(unit: Any) -> Any:
    if _Worker.interrupted:
        raise KeyboardInterrupt
    try:
        _Worker.busy = True
        return _Worker.work(unit)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)  # not to the next unit, which may be waiting already
    finally:
        _Worker.busy = False


def _on_interrupt(_signal: int, _frame: Any) -> None:
    """What is half written is removed on the way out; who does nothing just ends.

    The signal comes twice, from the terminal and from our parent; the second must not disturb the removal.
    """
    if not _Worker.busy:
        os._exit(128 + signal.SIGINT)
    if not _Worker.interrupted:
        _Worker.interrupted = True
        raise KeyboardInterrupt


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _interrupt(children: Iterable[Any]) -> None:
    """End workers: by asking, so that they remove what they have half written, and soon by force."""
    left = {child.sentinel: child for child in children}
    for child in left.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    while left and (seconds := deadline - time.monotonic()) > 0:
        for sentinel in connection.wait(list(left), seconds):
            del left[sentinel]
    for child in left.values():  # it may wait for a lock that another one had when it ended
        child.kill()
