"""Worker processes: each makes every M-th batch; the parent puts them in order and notices when one dies."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import signal
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from typing import Any

from tarmac.errors import NotPicklable, WorkerDied
from tarmac.loader.maker import BatchMaker, Result
from tarmac.loader.segments import map_segment, watched
from tarmac.loader.walk import Request
from tarmac.loader.worker import Handed, work

__all__ = ["Processes"]

PATIENCE = 2.0
"""Seconds a worker gets to end by itself."""


_parents_ends: weakref.WeakSet[Connection] = weakref.WeakSet()


class Processes:
    """The worker processes of a loader, started when first needed and kept from epoch to epoch."""

    def __init__(self, maker: BatchMaker, count: int, threads: int, start_method: str | None) -> None:
        self._maker, self._count, self._threads = maker, count, threads
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
        except (WorkerDied, KeyboardInterrupt):
            self.close()
            raise

    def _started(self) -> list[_Worker]:
        if not self._workers:
            if self._context.get_start_method() != "fork":
                _check_picklable(self._maker)
            self._requested = 0
            self._workers = [_Worker(self._context, self._maker, self._threads) for _ in range(self._count)]
        return self._workers

    def close(self) -> None:
        """End the workers."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.end()


class _Worker:
    """One worker process, seen from the parent."""

    def __init__(self, context: Any, maker: BatchMaker, threads: int) -> None:
        ours, theirs = context.Pipe()
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
            else:
                result = self._unpacked(*value)
                if found == number:
                    return result

    def _send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError:
            raise self._died() from None

    def _receive(self) -> Any:
        ready = wait([self._connection, self._process.sentinel])
        if self._connection in ready or self._connection.poll():
            with contextlib.suppress(EOFError, OSError):
                return self._connection.recv()
        raise self._died()

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
        result: Result = pickle.loads(handed.content, buffers=buffers)  # noqa: S301 - from our own child
        result.stats.hand_over += took + time.perf_counter() - began
        return result

    def _received_handle(self) -> int:
        try:
            return recv_handle(self._connection)
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

    def end(self) -> None:
        """Wait for the worker to end, and see to it that it does."""
        self._end()


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
