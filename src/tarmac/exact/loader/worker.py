"""What a worker process does: make the batches it is asked for and hand them over through shared memory."""

from __future__ import annotations

import pickle
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, NamedTuple

from tarmac.errors import NotPicklable, WorkerFailed
from tarmac.exact.loader.lookahead import LookAhead
from tarmac.exact.loader.maker import BatchMaker, Result
from tarmac.exact.loader.segments import Segment, needed

__all__ = ["Handed", "work"]


class Handed(NamedTuple):
    """A batch on its way: pickled, with its arrays in a segment of shared memory."""

    content: bytes
    segment: int | None
    places: list[tuple[int, int]]
    dropped: list[int]
    """Segments that will not be used again."""


SPARE = 1.25
"""A new segment is so much larger than its first batch, since the next may be a little larger."""


def work(connection: Connection, maker: BatchMaker, threads: int, parent: int) -> None:
    """Serve requests until the parent hangs up. Runs as the main function of a process."""
    # Ctrl-C is for the parent, which then hangs up; a traceback from each worker would only hide its own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    maker.after_fork()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tarmac-loader") if threads else None
    pending: deque[tuple[int, Callable[[], Result]]] = deque()
    segments = _Segments(connection, parent)
    look_ahead = LookAhead(maker.together, maker.order)
    try:
        while True:
            # Take what has arrived; wait for it only if there is nothing else to do.
            while not pending or connection.poll():
                kind, value = connection.recv()
                if kind == "stop":
                    return
                if kind == "free":
                    segments.free(value)
                else:
                    number, request = value
                    pending.append((number, maker.begin(request, pool, threads)))
            number, finish = pending.popleft()
            try:
                result = finish()
                look_ahead.batch_done(result.request)
                segments.send(number, result)
            except Exception as error:
                connection.send(("error", number, _sendable(error)))
    except (EOFError, OSError):  # the parent is gone or has closed its end
        pass
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def _sendable(error: Exception) -> Exception:
    """The error with its traceback as a note; what cannot be pickled is described."""
    trace = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"in a worker process:\n{trace}")
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here, of our own error
    except Exception:
        return WorkerFailed(f"{type(error).__name__} in a worker process: {error}\n{trace}")
    return error


def _not_picklable(batch: Any, error: Exception) -> NotPicklable:
    """Name the field of a batch that cannot be sent to another process, and what it is."""
    fields = batch.items() if isinstance(batch, Mapping) else enumerate(batch) if _is_tuple(batch) else ()
    for name, value in fields:
        if not _can_be_pickled(value):
            worst = (
                next((one for one in value if not _can_be_pickled(one)), value) if _is_tuple(value) else value
            )
            return _cannot_be_sent(f'field "{name}" of the batch', worst, error)
    return _cannot_be_sent("the batch", batch, error)


def _cannot_be_sent(what: str, value: Any, error: Exception) -> NotPicklable:
    return NotPicklable(
        f"{what}, of type {type(value).__qualname__}, cannot be sent out of a worker process: {error}.",
        hint="make arrays, numbers or text of it in a map(), or use threads, not processes.",
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
    """The shared memory of this worker: which segments there are, and which are free."""

    def __init__(self, connection: Connection, parent: int) -> None:
        self._connection, self._parent = connection, parent
        self._all: dict[int, Segment] = {}
        self._free: list[Segment] = []
        self._made = 0

    def free(self, number: int) -> None:
        """The parent has no more use for what is in a segment."""
        self._free.append(self._all[number])

    def send(self, number: int, result: Result) -> None:
        """Hand over a batch: its arrays in a segment, the rest in the message."""
        began = time.perf_counter()
        buffers: list[Any] = []
        try:
            content = pickle.dumps(result, protocol=5, buffer_callback=buffers.append)
        except Exception as error:
            raise _not_picklable(result.batch, error) from error
        segment, places, dropped = self._placed(buffers)
        handed = Handed(content, None if segment is None else segment.number, places, dropped)
        result_time = time.perf_counter() - began
        self._connection.send(("batch", number, (handed, result_time)))
        if segment is not None and segment.fd >= 0:
            send_handle(self._connection, segment.fd, self._parent)
            segment.forget_descriptor()

    def _placed(self, buffers: list[Any]) -> tuple[Segment | None, list[tuple[int, int]], list[int]]:
        if not buffers:
            return None, [], []
        size, dropped = needed(buffers), []
        fitting = [segment for segment in self._free if segment.size >= size]
        if fitting:
            segment = min(fitting, key=lambda one: one.size)
            self._free.remove(segment)
            segment.clear()
        else:
            # Those that are free are too small for what batches have become.
            dropped = [old.number for old in self._free]
            for old in dropped:
                del self._all[old]
            self._free.clear()
            segment = self._all[self._made] = Segment(self._made, int(size * SPARE))
            self._made += 1
        return segment, [segment.place(buffer.raw()) for buffer in buffers], dropped
