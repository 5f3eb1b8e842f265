"""Run units on a Dask cluster: that of the program, one at an address, or one that the engine starts."""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tarmac.errors import EngineError
from tarmac.extras import import_extra
from tarmac.jobs.engines import Finished, Work
from tarmac.jobs.engines.remote import (
    CONNECT_TIMEOUT,
    Cluster,
    Sender,
    lost,
    pack,
    reach,
    run_all,
    run_sent,
    sender,
    unreachable,
    worker_died,
)
from tarmac.jobs.task import Unit
from tarmac.runtime.device import AUTO
from tarmac.runtime.preemption import hold
from tarmac.runtime.processes import GUARD


class DaskEngine:
    """Run units on a Dask cluster.

    `dask://HOST:PORT` is the address of a scheduler, `dask+tls://HOST:PORT` that of one with TLS. Without an
    address, the current client of the program is used, else a cluster of `jobs` processes on this machine.
    """

    def __init__(self, jobs: int = 1, address: str = "") -> None:
        self._dask = import_extra("distributed", "dask", "the engine dask")
        self.jobs, self.address = jobs, address
        self.device: str | None = None

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Finished]:
        """Run all units and yield each with its result as they finish."""
        import cloudpickle

        data = pack(work, cloudpickle.dumps)
        with self._client() as (client, own):
            # A task, not scattered data: Dask computes it again if the worker that holds it dies.
            shared = client.submit(bytes, data, pure=False)
            about = sender(self.device)
            submitted = set[Any]()

            def submit(unit: bytes, workers: int) -> Future[bytes]:
                description = {**about, "workers": workers}
                call = pickle.dumps(_Call(description, unit, own), protocol=5, buffer_callback=lambda _: None)
                task = client.submit(pickle.loads, call, buffers=[shared], pure=False, retries=0)
                future = Future[bytes]()
                submitted.add(task)

                def done(_: Any) -> None:
                    submitted.discard(task)
                    try:
                        future.set_result(task.result())
                    except Exception as error:
                        future.set_exception(error)
                    except BaseException as error:  # of asyncio, if the connection is lost
                        future.set_exception(ConnectionError(f"{type(error).__name__} {error}"))

                task.add_done_callback(done)
                return future

            def explain(error: Exception) -> Exception:
                if isinstance(error, self._dask.KilledWorker):
                    return worker_died("the Dask cluster", error)
                raise lost(self.address, error) from error

            def count() -> int:
                try:
                    return sum(client.nthreads().values())
                except Exception as error:
                    raise lost(self.address, error) from error

            try:
                yield from run_all(submit, units, Cluster(count, self.address), explain)
            finally:
                with contextlib.suppress(Exception):  # the scheduler may be gone
                    client.cancel([*submitted, shared], force=True)

    @contextlib.contextmanager
    def _client(self) -> Iterator[tuple[Any, bool]]:
        """Yield a client, and whether the cluster belongs to this engine."""
        if self.address:
            reach(self.address)
            url = (
                self.address.removeprefix("dask+")
                if "+" in self.address
                else f"tcp{self.address.removeprefix('dask')}"
            )
            with _without_logs():
                try:
                    client = self._dask.Client(url, timeout=CONNECT_TIMEOUT, set_as_default=False)
                except (OSError, ValueError) as error:
                    raise unreachable(self.address, error) from error
                with client:
                    yield client, False
            return
        try:
            current = self._dask.Client.current()
        except ValueError:  # there is none
            current = None
        if current is not None:
            yield current, False
            return
        with contextlib.ExitStack() as stack:
            scratch = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="tarmac-dask-", ignore_cleanup_errors=True)
            )
            try:
                with hold():  # a cluster that is interrupted while it starts cannot be closed
                    cluster = stack.enter_context(
                        self._dask.LocalCluster(
                            n_workers=self.jobs, threads_per_worker=1, processes=True, host="127.0.0.1",
                            dashboard_address="127.0.0.1:0", memory_limit=0, silence_logs=logging.CRITICAL,
                            local_directory=scratch,
                        )
                    )  # fmt: skip
            except RuntimeError as error:
                raise EngineError(f"cannot start a Dask cluster: {error}.", hint=GUARD) from error
            yield stack.enter_context(self._dask.Client(cluster, set_as_default=False)), True


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Keep the library from logging tracebacks of a lost connection, which is raised as an error."""
    loggers = [
        logging.getLogger(name)
        for name in ("distributed", "distributed.client", "tornado.application", "asyncio")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@dataclass(frozen=True)
class _Call:
    """A call of `_run` that happens when it is unpickled, with the work as its buffer.

    A worker of Dask that cannot import the function of a task exits, and the scheduler imports it, too. Both can
    import `pickle.loads`, so that a missing tarmac is an ordinary error of the task.
    """

    about: Sender
    unit: bytes
    own: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return _run, (self.about, pickle.PickleBuffer(b""), self.unit, self.own)


def _run(about: Sender, work: bytes, unit: bytes, own: bool) -> bytes:
    """Run one unit on a worker of Dask."""
    from distributed import get_worker

    # dask-cuda gives each worker its own order of GPUs; only workers of our own clusters need their number.
    numbered = own or about.get("device") not in (None, AUTO)
    number = re.search(r"\d+$", str(get_worker().name)) if numbered else None
    return run_sent(about, work, unit, int(number[0]) if number else 0)
