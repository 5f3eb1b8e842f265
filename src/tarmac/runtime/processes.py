"""Start worker processes, send them work, and make sure that they end.

`worker_pool` is a pool for independent items of work. Loaders that keep a connection to each of their workers
use the functions below it: what a worker sends when it fails, how it ended, and how it is stopped.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from tarmac.errors import NotPicklable, WorkerDied, WorkerFailed
from tarmac.plugins import load_plugins, plugins_loaded
from tarmac.runtime.device import current_device, use_device
from tarmac.runtime.preemption import INTERRUPTS, Preempted, hold, interrupt

T = TypeVar("T")
R = TypeVar("R")

EXIT_TIMEOUT = 3.0
"""Seconds that an interrupted worker gets to clean up before it is killed."""
SAVE_TIMEOUT = 3600.0
"""Seconds that a preempted worker gets to save its work; schedulers kill earlier, and a second signal ends the wait."""
PR_SET_PDEATHSIG = 1
_UNFORKABLE = ("obstore", "torch", "faiss")
"""Libraries whose threads do not survive a fork."""


@contextlib.contextmanager
def worker_pool(
    processes: int, work: Callable[[T], R], devices: Sequence[str] = (), *, saves: bool = False
) -> Iterator[Callable[[T], Future[R]]]:
    """Start processes that run `work`, and yield the function that submits an item to them.

    `work` is sent once, when a process starts. The processes use the devices in turn. They end with the block or with
    this process, whichever ends first. Work that `saves` gets the signal that preempts this process, and the time to
    save what it has. Pass futures to `result_of`.
    """
    context = _context()
    forked = context.get_start_method() == "fork"
    if not forked:
        check_picklable(work)
    started = context.Value("i", 0) if devices else None
    about = (work, plugins_loaded(), devices or [current_device()], started)
    with ProcessPoolExecutor(processes, context, _start_worker, about) as pool:

        def submit(item: T) -> Future[R]:
            try:
                with _signals_blocked():  # until a worker that starts now has its handlers
                    future = pool.submit(_run, item)
            except BrokenProcessPool:
                raise _worker_died(forked=forked) from None
            future.forked = forked  # type: ignore[attr-defined]
            return future

        try:
            yield submit
        except BaseException as error:
            # Only the pool's own processes: the program may have started others meanwhile.
            workers = list((pool._processes or {}).values())
            _interrupt(workers, error.number if saves and isinstance(error, Preempted) else signal.SIGINT)
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def result_of(future: Future[R]) -> R | Exception:
    """Return what a worker returned or raised; a worker that died is a WorkerDied."""
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        return _worker_died(forked=getattr(future, "forked", False))
    if isinstance(error, Exception):
        return error
    if error is not None:  # Ctrl-C reached the worker before this process
        raise error
    return future.result()


def can_pickle(value: object) -> bool:
    """Return whether a value can be sent to other processes: it may have a local function."""
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


def check_picklable(work: object) -> None:
    """Raise NotPicklable if the work cannot be sent to a process that starts as a fresh interpreter."""
    try:
        pickle.dumps(work)
    except Exception as error:
        raise NotPicklable(f"cannot send the work to a worker process: {error}.") from error


GUARD = 'put the main program below `if __name__ == "__main__":`, which processes need that are not forked.'
"""What to try if a process ends before it has done anything: it may have run the program again."""


def _worker_died(*, forked: bool) -> WorkerDied:
    hint = "run the same command again, with fewer processes if memory ran out."
    if not forked:
        hint = f"{hint} In a script, {GUARD}"
    return WorkerDied("a worker process was killed or exited early.", hint=hint)


_harmless: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def allow_fork(thread: threading.Thread) -> None:
    """Register a thread that holds no lock which a forked process needs."""
    _harmless.add(thread)


def _context() -> Any:
    """Return the start method: fork, which is fast, unless a loaded library does not survive it."""
    alone = all(thread in _harmless or thread is threading.main_thread() for thread in threading.enumerate())
    forkable = alone and not any(name in sys.modules for name in _UNFORKABLE)
    return multiprocessing.get_context("fork" if forkable and sys.platform == "linux" else "spawn")


class _Worker:
    """The state of a worker process."""

    work: Callable[[Any], Any]
    busy = False
    interrupted = False


def _start_worker(
    work: Callable[[Any], Any], with_plugins: bool, devices: Sequence[str], started: Any
) -> None:
    _Worker.work = staticmethod(work)
    slot = 0
    if started is not None:
        with started:
            slot, started.value = started.value, started.value + 1
    use_device(devices[slot % len(devices)])
    for number in INTERRUPTS:
        # SIGTERM, too: the pool terminates all workers as soon as one has died, which must not interrupt their cleanup.
        signal.signal(number, _on_interrupt)
    with _signals_blocked():
        threading.Thread(target=_exit_with_parent, name="tarmac-parent", daemon=True).start()
    _die_with_parent()
    if with_plugins:
        load_plugins(warn=False)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals in threads and processes that are started meanwhile: only the main thread handles them."""
    if sys.platform == "win32":
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)


def _die_with_parent() -> None:
    """Have Linux kill this process when its parent dies, so that a restarted job does not run beside old workers."""
    if sys.platform == "linux":
        import ctypes

        parent = multiprocessing.parent_process()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent is not None and os.getppid() != parent.pid:
            os._exit(1)  # the parent died before the request


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(item: Any) -> Any:
    if _Worker.interrupted:
        raise KeyboardInterrupt
    try:
        _Worker.busy = True
        result = _Worker.work(item)
    except KeyboardInterrupt as interrupt:
        # Suspended generators clean up when the frames that hold them are cleared.
        traceback.clear_frames(interrupt.__traceback__)
        os._exit(128 + signal.SIGINT)  # the next item may be waiting already
    finally:
        _Worker.busy = False
    if _Worker.interrupted:  # the work has caught the exception, and the parent waits for the end
        os._exit(128 + signal.SIGINT)
    return result


def _on_interrupt(number: int, _frame: Any) -> None:
    """Interrupt a busy worker, which then saves its work and removes partial output; exit in an idle one.

    The signal comes twice, from the terminal and from the parent; the second must not interrupt the cleanup.
    """
    if not _Worker.busy:
        os._exit(128 + signal.SIGINT)
    if not _Worker.interrupted:
        _Worker.interrupted = True
        interrupt(number)


def _interrupt(processes: list[Any], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
    left = processes
    try:
        with hold() if number != signal.SIGINT else contextlib.nullcontext():
            left = wait_for_exit(processes, EXIT_TIMEOUT if number == signal.SIGINT else SAVE_TIMEOUT)
    finally:
        for process in left:
            process.kill()  # it may wait for a lock that a dead worker holds


def wait_for_exit(processes: Iterable[Any], timeout: float) -> list[Any]:
    """Wait until the processes have ended; return those that still run after `timeout` seconds."""
    running = {process.sentinel: process for process in processes}
    deadline = time.monotonic() + timeout
    while running and (seconds := deadline - time.monotonic()) > 0:
        for sentinel in connection.wait(list(running), seconds):
            del running[sentinel]
    return list(running.values())


def is_running(pid: int) -> bool:
    """Return whether there is a process with this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def exit_reason(process: Any) -> str:
    """Return how a process ended, for messages: "was killed by SIGKILL"."""
    process.join(EXIT_TIMEOUT)  # the status is known a moment after the end
    code = process.exitcode
    if code is None or code >= 0:
        return f"exited with status {code}"
    return f"was killed by {signal.Signals(-code).name}"


def sendable_error(error: Exception, where: str = "a worker process") -> Exception:
    """Return an error that can be sent to the parent, with its traceback as a note.

    One that cannot be pickled becomes a WorkerFailed with its text.
    """
    trace = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"in {where}:\n{trace}")
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own error
    except Exception:
        return WorkerFailed(f"{type(error).__name__} in {where}: {error}\n{trace}")
    return error


_parent_ends: weakref.WeakSet[Connection[Any, Any]] = weakref.WeakSet()


def keep_in_parent(end: Connection[Any, Any]) -> None:
    """Register the parent's end of a pipe to a worker, so that `close_parent_ends` closes it there."""
    _parent_ends.add(end)


def close_parent_ends() -> None:
    """Close the parent's ends of all pipes in a forked worker.

    While a worker holds one open, the worker at its other end does not notice that the parent has died.
    """
    for end in list(_parent_ends):
        end.close()
