"""Worker processes: each builds every M-th batch; the parent orders the batches and detects dead workers."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import socket
import struct
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from tarmac.errors import LoaderError, NotPicklable, WorkerDied, WorkerFailed
from tarmac.exact.loader.builder import BatchBuilder, Result
from tarmac.exact.loader.shared_memory import map_segment, watched
from tarmac.exact.loader.spool import Spool
from tarmac.exact.loader.worker import SentBatch, work
from tarmac.exact.order.epochs import Request
from tarmac.exact.steps import describe_step
from tarmac.runtime.lookahead import look_ahead
from tarmac.runtime.processes import GUARD, exit_reason, keep_in_parent

SHUTDOWN_TIMEOUT = 2.0
"""Seconds until workers that do not exit are killed."""
STALL = 1800.0
"""Default timeout in seconds for a worker that sends nothing, ..."""
STOPPED = 60.0
"""... and for a worker that was stopped, as with SIGSTOP."""
TICK = 1.0
"""Seconds between two checks of a worker. Checks are counted, so time while the parent is stopped does not count."""


class Processes:
    """The worker processes of a loader, started on first use and kept between epochs."""

    def __init__(
        self, builder: BatchBuilder, count: int, threads: int, start_method: str | None, stall: float = STALL
    ) -> None:
        self.count = count
        self._builder, self._threads, self._stall = builder, threads, stall
        self._context: Any = multiprocessing.get_context(start_method)
        self._workers: list[_Worker] = []
        self._requested = 0

    def results(
        self, requests: Iterator[Request], prefetch: int, spool: Spool | None = None
    ) -> Generator[Result, None, None]:
        """Yield batches in order; each worker prepares `prefetch` batches ahead, and reads from the spool."""
        workers = self._started(spool)

        def start(request: Request) -> tuple[_Worker, int]:
            number = self._requested
            worker = workers[number % len(workers)]
            worker.request(number, request)
            self._requested += 1
            return worker, number

        try:
            # Batches of an abandoned iteration are discarded when they arrive.
            for worker, number in look_ahead(start, requests, prefetch * len(workers)):
                yield worker.take(number)
        except (WorkerDied, WorkerFailed, KeyboardInterrupt):
            self.close()
            raise

    def _started(self, spool: Spool | None) -> list[_Worker]:
        if not self._workers:
            if self._context.get_start_method() != "fork":
                _check_picklable(self._builder)
            self._requested = 0
            self._workers = [
                _Worker(self._context, self._builder, self._threads, self._stall) for _ in range(self.count)
            ]
            if spool is not None:
                for worker in self._workers:
                    worker.send_spool(spool)
        return self._workers

    def close(self) -> None:
        """Terminate the workers."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.stop()
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT
        for worker in workers:
            worker.join(deadline)


class _Worker:
    """The parent's handle of one worker process."""

    def __init__(self, context: Any, builder: BatchBuilder, threads: int, stall: float) -> None:
        ours, theirs = context.Pipe()
        set_timeouts(ours, min(stall, STOPPED))
        self._stall = stall
        self._connection: Connection = ours
        keep_in_parent(ours)
        self._process = context.Process(
            target=work, args=(theirs, builder, threads, os.getpid()), daemon=True
        )
        self._process.start()
        self._imports_main = context.get_start_method() != "fork"
        self._answered = False
        theirs.close()
        self._memory: dict[int, Any] = {}
        self._freed: deque[int] = deque()
        self._finalize = weakref.finalize(self, _terminate, ours, self._process)

    def request(self, number: int, request: Request) -> None:
        """Request a batch."""
        while self._freed:
            self._send(("free", self._freed.popleft()))
        self._send(("build", (number, request)))

    def send_spool(self, spool: Spool) -> None:
        """Give the worker the descriptor of the spool."""
        self._send(("spool", None))
        with self._connected():
            send_handle(self._connection, spool.fileno(), self._process.pid)

    def take(self, number: int) -> Result:
        """Wait for a batch; batches of an abandoned iteration are discarded."""
        while True:
            received, value = self._receive()
            result = self._unpack(value) if isinstance(value, SentBatch) else value
            if received == number:
                if isinstance(result, Exception):
                    raise result
                return result

    def _send(self, message: Any) -> None:
        with self._connected():
            self._connection.send(message)

    def _receive(self) -> Any:
        ready = self._wait()
        with self._connected():
            if self._connection in ready or self._connection.poll():
                received = self._connection.recv()
                self._answered = True
                return received
        raise self._died()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """Raise WorkerFailed or WorkerDied instead of the errors of the connection."""
        self._check_open()
        try:
            yield
        except BlockingIOError:
            raise self._stalled(min(self._stall, STOPPED)) from None
        except (EOFError, OSError, RuntimeError):  # RuntimeError: killed between a batch and its descriptor
            raise self._died() from None

    def _check_open(self) -> None:
        if self._connection.closed:
            raise LoaderError("the loader was closed during this iteration.", hint="iterate again.")

    def _wait(self) -> list[Any]:
        """Wait until the worker has sent something or exited, or raise on timeout."""
        self._check_open()
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
            what = "was stopped (SIGSTOP) and not continued"
            hint = "iterate again, which starts new processes; kill -CONT continues a stopped one in time."
        else:
            what = f"sent nothing for {seconds:g} s"
            hint = "a larger `stall`, or check whether a step of the dataset waits forever."
        self._process.kill()
        return WorkerFailed(f"worker process {pid} {what}.", hint=hint)

    def _unpack(self, sent: SentBatch) -> Result | NotPicklable:
        began = time.perf_counter()
        buffers: list[Any] = []
        for number in sent.dropped:
            del self._memory[number]
        if sent.segment is not None:
            if sent.segment not in self._memory:
                with self._connected():
                    descriptor = recv_handle(self._connection)
                self._memory[sent.segment] = map_segment(descriptor)
            # Not self: a batch must not keep the process alive.
            free = functools.partial(self._freed.append, sent.segment)
            whole = watched(self._memory[sent.segment], free)
            buffers = [whole[start:end] for start, end in sent.ranges]
        try:
            result: Result = pickle.loads(sent.content, buffers=buffers)  # noqa: S301 - from our own child
        except Exception as error:
            problem = NotPicklable(
                f"a batch from a worker process cannot be read: {type(error).__name__}: {error}.",
                hint="convert its fields to arrays, numbers or text in a map(), or use threads instead of processes.",
            )
            problem.__cause__ = error
            return problem
        result.stats.transfer += sent.seconds + time.perf_counter() - began
        return result

    def _died(self) -> WorkerDied:
        hint = None if self._answered or not self._imports_main else f"{GUARD} Otherwise {WorkerDied.hint}"
        return WorkerDied(f"worker process {self._process.pid} {exit_reason(self._process)}.", hint=hint)

    def stop(self) -> None:
        """Ask the worker to exit."""
        with contextlib.suppress(OSError):
            self._connection.send(("stop", None))
        self._connection.close()

    def join(self, deadline: float) -> None:
        """Wait for the worker to exit; kill it after the deadline."""
        process = self._process
        while process.is_alive():
            if is_stopped(process.pid) or time.monotonic() > deadline:
                process.kill()
            process.join(TICK / 10)
        self._finalize()


def set_timeouts(connection: Connection, seconds: float) -> None:
    """Make reads and writes fail if the other end does nothing for this long, even within a message."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def is_stopped(pid: int | None) -> bool:
    """Return whether a process is stopped, on systems that have /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False


def _terminate(connection: Connection, process: Any) -> None:
    """Terminate a worker process, whatever it is doing."""
    connection.close()
    process.join(SHUTDOWN_TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


def _check_picklable(builder: BatchBuilder) -> None:
    """Raise an error that names the step that cannot be pickled."""
    steps = [step for part in builder.samples._parts for step in part.steps]
    for what, value in [*((f"step {describe_step(step)}", step) for step in steps), ("loader", builder)]:
        try:
            pickle.dumps(value)
        except Exception as error:
            raise NotPicklable(f"the {what} cannot be sent to a worker: {error}.") from error
