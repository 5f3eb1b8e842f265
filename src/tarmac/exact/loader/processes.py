"""Worker processes: each makes every M-th batch; the parent puts them in order and notices when one dies."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any

from tarmac.errors import NotPicklable, WorkerDied, WorkerFailed
from tarmac.exact.loader.maker import BatchMaker, Result
from tarmac.exact.loader.segments import map_segment, watched
from tarmac.exact.loader.walk import Request
from tarmac.exact.loader.worker import Handed, work

__all__ = ["Processes"]

PATIENCE = 2.0
"""Seconds that workers get to end by themselves."""
STALL = 1800.0
"""Seconds after which a worker that sends nothing has stalled, by default, ..."""
STOPPED = 60.0
"""... and after which one does that the system has stopped, as SIGSTOP does."""
TICK = 1.0
"""Seconds between two looks at a worker. Looks are counted, so that being stopped ourselves adds nothing."""


_parents_ends: weakref.WeakSet[Connection] = weakref.WeakSet()


class Processes:
    """The worker processes of a loader, started when first needed and kept from epoch to epoch."""

    def __init__(
        self, maker: BatchMaker, count: int, threads: int, start_method: str | None, stall: float = STALL
    ) -> None:
        self._maker, self._count, self._threads, self._stall = maker, count, threads, stall
        self._context: Any = multiprocessing.get_context(start_method)
        self._workers: list[_Worker] = []
        self._requested = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def results(self, requests: Iterator[Request], ahead: int) -> Generator[Result, None, None]:
        """Have batches made, in order, each worker being a few ahead."""
        workers = self._started()
        first = self._requested  # what was asked for before and not taken is thrown away when it comes
        taken = first
        try:
            for request in requests:
                workers[self._requested % len(workers)].ask(self._requested, request)
                self._requested += 1
                if self._requested - taken >= ahead * len(workers):
                    yield workers[taken % len(workers)].take(taken)
                    taken += 1
            while taken < self._requested:
                yield workers[taken % len(workers)].take(taken)
                taken += 1
        except (WorkerDied, WorkerFailed, KeyboardInterrupt):
            self.close()
            raise

    def _started(self) -> list[_Worker]:
        if not self._workers:
            if self._context.get_start_method() != "fork":
                _check_picklable(self._maker)
            self._requested = 0
            self._workers = [
                _Worker(self._context, self._maker, self._threads, self._stall) for _ in range(self._count)
            ]
        return self._workers

    def close(self) -> None:
        """End the workers."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.hang_up()
        deadline = time.monotonic() + PATIENCE
        for worker in workers:
            worker.end(deadline)


class _Worker:
    """One worker process, seen from the parent."""

    def __init__(self, context: Any, maker: BatchMaker, threads: int, stall: float) -> None:
        ours, theirs = context.Pipe()
        limit_waiting(ours, min(stall, STOPPED))
        self._stall = stall
        self._connection: Connection = ours
        _parents_ends.add(ours)
        self._process = context.Process(target=_main, args=(theirs, maker, threads, os.getpid()), daemon=True)
        self._process.start()
        theirs.close()
        self._memory: dict[int, Any] = {}
        self._received: dict[int, Any] = {}
        self._freed: deque[int] = deque()
        self._end = weakref.finalize(self, _end, ours, self._process)

    def ask(self, number: int, request: Request) -> None:
        """Have a batch made."""
        while self._freed:
            self._send(("free", self._freed.popleft()))
        self._send(("make", (number, request)))

    def take(self, number: int) -> Result:
        """Wait for a batch; those of an earlier iteration that was given up are passed over."""
        while True:
            kind, found, value = self._receive()
            if kind == "error":
                if found == number:
                    raise value
                continue
            try:
                result = self._unpacked(*value)
            except NotPicklable:
                if found == number:
                    raise
            else:
                if found == number:
                    return result

    def _send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except BlockingIOError:
            raise self._stalled(min(self._stall, STOPPED)) from None
        except OSError:
            raise self._died() from None

    def _receive(self) -> Any:
        ready = self._wait()
        try:
            if self._connection in ready or self._connection.poll():
                return self._connection.recv()
        except BlockingIOError:
            raise self._stalled(min(self._stall, STOPPED)) from None
        except (EOFError, OSError):
            pass
        raise self._died()

    def _wait(self) -> list[Any]:
        """Wait until the worker has sent something or ended, but not for ever."""
        waited = stopped = 0.0
        tick = min(TICK, self._stall)
        while True:
            if ready := wait([self._connection, self._process.sentinel], tick):
                return ready
            waited += tick
            stopped = stopped + tick if is_stopped(self._process.pid) else 0.0
            if waited >= self._stall or stopped >= min(self._stall, STOPPED):
                raise self._stalled(waited)

    def _stalled(self, seconds: float) -> WorkerFailed:
        pid = self._process.pid
        if is_stopped(pid):
            what, hint = "was stopped (SIGSTOP), and nobody let it go on", "kill -CONT lets a process go on."
        else:
            what = f"sent nothing for {seconds:g} s"
            hint = "Loader(stall=…) waits longer; a step may be waiting for something that never comes."
        self._process.kill()
        return WorkerFailed(f"worker process {pid} {what}.", hint=hint)

    def _unpacked(self, handed: Handed, took: float) -> Result:
        began = time.perf_counter()
        buffers: list[Any] = []
        for number in handed.dropped:
            del self._memory[number]
        if handed.segment is not None:
            if handed.segment not in self._memory:
                self._memory[handed.segment] = map_segment(self._received_handle())
            # Not self, which would keep the process for as long as somebody keeps a batch.
            free = functools.partial(self._freed.append, handed.segment)
            whole = watched(self._memory[handed.segment], free)
            buffers = [whole[start:end] for start, end in handed.places]
        try:
            result: Result = pickle.loads(handed.content, buffers=buffers)  # noqa: S301 - from our own child
        except Exception as error:
            raise NotPicklable(
                f"a batch from a worker process cannot be read: {type(error).__name__}: {error}.",
                hint="make arrays, numbers or text of its fields in a map(), or use threads, not processes.",
            ) from error
        result.stats.hand_over += took + time.perf_counter() - began
        return result

    def _received_handle(self) -> int:
        try:
            return recv_handle(self._connection)
        except BlockingIOError:
            raise self._stalled(min(self._stall, STOPPED)) from None
        except (EOFError, OSError, RuntimeError):  # it was killed between the batch and its descriptor
            raise self._died() from None

    def _died(self) -> WorkerDied:
        self._process.join(PATIENCE)
        code = self._process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with status {code}"
        return WorkerDied(f"worker process {self._process.pid} {how}.")

    def hang_up(self) -> None:
        """Tell the worker that nothing more is wanted."""
        with contextlib.suppress(OSError):
            self._connection.send(("stop", None))
        self._connection.close()

    def end(self, deadline: float) -> None:
        """Wait for the worker to end, and see to it that it does."""
        process = self._process
        while process.is_alive():
            if is_stopped(process.pid) or time.monotonic() > deadline:
                process.kill()
            process.join(TICK / 10)
        self._end()


def limit_waiting(connection: Connection, seconds: float) -> None:
    """Let reading and writing fail in the middle of a message if the other end does nothing for so long."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def is_stopped(pid: int | None) -> bool:
    """Whether the system has stopped a process, where it can be asked."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False


def _main(connection: Connection, maker: BatchMaker, threads: int, parent: int) -> None:
    # A forked child has the parent's ends of all workers. While they are open here, their workers would not
    # notice that the parent has died.
    for end in list(_parents_ends):
        end.close()
    work(connection, maker, threads, parent)


def _end(connection: Connection, process: Any) -> None:
    """End a worker process whatever it is doing."""
    connection.close()
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


def _check_picklable(maker: BatchMaker) -> None:
    """Name the step that cannot be sent to a fresh interpreter."""
    try:
        pickle.dumps(maker)
    except Exception as error:
        problem = error
    else:
        return
    for step in maker.steps():
        try:
            pickle.dumps(step)
        except Exception as error:
            name = getattr(getattr(step, "f", None), "__qualname__", "")
            what = f"the step {type(step).__name__}({name}) cannot be sent to a worker: {error}."
            raise NotPicklable(what) from None
    raise NotPicklable(f"the loader cannot be sent to a worker: {problem}.") from problem
