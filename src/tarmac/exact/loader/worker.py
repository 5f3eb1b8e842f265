"""The main loop of a worker process: build the requested batches and send them through shared memory."""

from __future__ import annotations

import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, NamedTuple

from tarmac.errors import NotPicklable
from tarmac.exact.loader.builder import BatchBuilder, Result
from tarmac.exact.loader.lookahead import LookAhead
from tarmac.exact.loader.shared_memory import Segment, required_size
from tarmac.runtime.processes import sendable_error


class SentBatch(NamedTuple):
    """A pickled batch, with its arrays in a segment of shared memory."""

    content: bytes
    segment: int | None
    ranges: list[tuple[int, int]]
    """Begin and end of each array in the segment."""
    dropped: list[int]
    """Segments that are not used any more."""


SPARE = 1.25
"""Size of a new segment relative to its first batch: the next batch may be a little larger."""


def work(connection: Connection, builder: BatchBuilder, threads: int, parent: int) -> None:
    """Serve requests until the parent closes the connection. This is the main function of the process."""
    # Ctrl-C is for the parent, which then stops the workers; their tracebacks would only hide its own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    builder.after_fork()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tarmac-loader") if threads else None
    pending: deque[tuple[int, Callable[[], Result]]] = deque()
    segments = _Segments(connection, parent)
    look_ahead = LookAhead(builder.samples, builder.order)
    try:
        while True:
            # Wait for messages only if there is nothing else to do.
            while not pending or connection.poll():
                kind, value = connection.recv()
                if kind == "stop":
                    return
                if kind == "free":
                    segments.free(value)
                else:
                    number, request = value
                    pending.append((number, builder.begin(request, pool, threads)))
            number, finish = pending.popleft()
            try:
                result = finish()
                look_ahead.batch_done(result.request)
                segments.send(number, result)
            except Exception as error:
                connection.send(("error", number, sendable_error(error)))
    except (EOFError, OSError):  # the parent has exited or closed its end
        pass
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _not_picklable(batch: Any, error: Exception) -> NotPicklable:
    """Return an error that names the field of the batch that cannot be pickled, and its type."""
    fields = batch.items() if isinstance(batch, Mapping) else enumerate(batch) if _is_tuple(batch) else ()
    for name, value in fields:
        if not _can_be_pickled(value):
            culprit = (
                next((one for one in value if not _can_be_pickled(one)), value) if _is_tuple(value) else value
            )
            return _cannot_be_sent(f'field "{name}" of the batch', culprit, error)
    return _cannot_be_sent("the batch", batch, error)


def _cannot_be_sent(what: str, value: Any, error: Exception) -> NotPicklable:
    return NotPicklable(
        f"{what}, of type {type(value).__qualname__}, cannot be sent from a worker process: {error}.",
        hint="convert it to arrays, numbers or text in a map(), or use threads instead of processes.",
    )


def _is_tuple(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _can_be_pickled(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


class _Segments:
    """The shared-memory segments of this worker."""

    def __init__(self, connection: Connection, parent: int) -> None:
        self._connection, self._parent = connection, parent
        self._all: dict[int, Segment] = {}
        self._free: list[Segment] = []
        self._created = 0

    def free(self, number: int) -> None:
        """Reuse a segment that the parent has released."""
        self._free.append(self._all[number])

    def send(self, number: int, result: Result) -> None:
        """Send a batch: its arrays in a segment, the rest in the message."""
        began = time.perf_counter()
        buffers: list[Any] = []
        try:
            content = pickle.dumps(result, protocol=5, buffer_callback=buffers.append)
        except Exception as error:
            raise _not_picklable(result.batch, error) from error
        segment, ranges, dropped = self._store(buffers)
        sent = SentBatch(content, None if segment is None else segment.number, ranges, dropped)
        result_time = time.perf_counter() - began
        self._connection.send(("batch", number, (sent, result_time)))
        if segment is not None and segment.fd >= 0:
            send_handle(self._connection, segment.fd, self._parent)
            segment.close_descriptor()

    def _store(self, buffers: list[Any]) -> tuple[Segment | None, list[tuple[int, int]], list[int]]:
        if not buffers:
            return None, [], []
        size, dropped = required_size(buffers), []
        fitting = [segment for segment in self._free if segment.size >= size]
        if fitting:
            segment = min(fitting, key=lambda one: one.size)
            self._free.remove(segment)
            segment.clear()
        else:
            # The free segments are too small for the current batches.
            dropped = [old.number for old in self._free]
            for old in dropped:
                del self._all[old]
            self._free.clear()
            segment = self._all[self._created] = Segment(self._created, int(size * SPARE))
            self._created += 1
        return segment, [segment.write(buffer.raw()) for buffer in buffers], dropped
