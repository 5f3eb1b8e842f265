"""The main loop of a worker process: build the requested batches and send them through shared memory."""

from __future__ import annotations

import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

from tarmac.environment import keep_torch_single
from tarmac.errors import NotPicklable
from tarmac.exact.loader.builder import BatchBuilder, Result
from tarmac.exact.loader.lookahead import LookAhead
from tarmac.exact.loader.shared_memory import Segment, required_size
from tarmac.exact.loader.spool import Spool
from tarmac.runtime.processes import close_parent_ends, sendable_error


class SentBatch(NamedTuple):
    """A pickled batch, with its arrays in a segment of shared memory."""

    content: bytes
    segment: int | None
    ranges: list[tuple[int, int]]
    """Begin and end of each array in the segment."""
    dropped: list[int]
    """Segments that are not used any more."""
    seconds: float
    """The time that packing took."""


SPARE = 1.25
"""Size of a new segment relative to its first batch: the next batch may be a little larger."""


def work(connection: Connection, builder: BatchBuilder, threads: int, parent: int) -> None:
    """Serve requests until the parent closes the connection. This is the main function of the process."""
    # Ctrl-C is for the parent, which then stops the workers; their tracebacks would only hide its own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    close_parent_ends()
    keep_torch_single()
    builder.samples._after_fork()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tarmac-loader") if threads else None
    pending: deque[tuple[int, Callable[[], Result]]] = deque()
    segments = _Segments(connection, parent)
    look_ahead = LookAhead(builder.samples, builder.order)
    spool: Spool | None = None
    try:
        while True:
            # Wait for messages only if there is nothing else to do.
            while not pending or connection.poll():
                kind, value = connection.recv()
                if kind == "stop":
                    return
                if kind == "free":
                    segments.free(value)
                elif kind == "spool":
                    spool = Spool(0, recv_handle(connection))
                else:
                    number, request = value
                    pending.append((number, builder.begin(request, pool, threads, spool)))
            number, finish = pending.popleft()
            try:
                result = finish()
                look_ahead.batch_done(result.request)
                segments.send(number, result)
            except Exception as error:
                connection.send((number, sendable_error(error)))
    except (EOFError, OSError):  # the parent has exited or closed its end
        pass
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _not_picklable(batch: Any, error: Exception) -> NotPicklable:
    """Return an error that names the field of the batch that cannot be pickled, and its type."""
    what, culprit = "the batch", batch
    fields = batch.items() if isinstance(batch, Mapping) else enumerate(_elements(batch))
    for name, value in fields:
        if not _can_be_pickled(value):
            what = f'field "{name}" of the batch'
            culprit = next((one for one in _elements(value) if not _can_be_pickled(one)), value)
            break
    return NotPicklable(
        f"{what}, of type {type(culprit).__qualname__}, cannot be sent from a worker process: {error}.",
        hint="convert it to arrays, numbers or text in a map(), or use threads instead of processes.",
    )


def _elements(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else ()


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
        buffers: list[pickle.PickleBuffer] = []
        try:
            content = pickle.dumps(result, protocol=5, buffer_callback=buffers.append)
        except Exception as error:
            raise _not_picklable(result.batch, error) from error
        segment, ranges, dropped = self._store([buffer.raw() for buffer in buffers])
        name = None if segment is None else segment.number
        sent = SentBatch(content, name, ranges, dropped, time.perf_counter() - began)
        self._connection.send((number, sent))
        if segment is not None and segment.fd >= 0:
            send_handle(self._connection, segment.fd, self._parent)
            segment.close_descriptor()

    def _store(self, buffers: list[memoryview]) -> tuple[Segment | None, list[tuple[int, int]], list[int]]:
        if not buffers:
            return None, [], []
        size, dropped = required_size(buffers), []
        fitting = [segment for segment in self._free if segment.size >= size]
        if fitting:
            segment = min(fitting, key=lambda one: one.size)
            self._free.remove(segment)
        else:
            # The free segments are too small for the current batches.
            dropped = [old.number for old in self._free]
            for old in dropped:
                del self._all[old]
            self._free.clear()
            segment = self._all[self._created] = Segment(self._created, int(size * SPARE))
            self._created += 1
        return segment, segment.write(buffers), dropped
