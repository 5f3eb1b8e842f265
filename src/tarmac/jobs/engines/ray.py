"""Run units on a Ray cluster: that of the program or environment, one at an address, or one that the engine starts."""

from __future__ import annotations

import contextlib
import logging
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from tarmac import environment
from tarmac.errors import EngineError
from tarmac.extras import import_extra
from tarmac.jobs.engines import Finished, Work
from tarmac.jobs.engines.remote import (
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
from tarmac.limits import MIB
from tarmac.runtime.preemption import hold, reinstall_handlers

CONNECT_ATTEMPTS, CONNECT_PAUSE = 4, 2.0
"""How often to connect, and the first pause in seconds: a busy head node may fail to start the server of a client."""

CANCEL_TIMEOUT = 5.0
"""Seconds to wait for units that were cancelled."""


class RayEngine:
    """Run units as Ray tasks of one CPU, and of one GPU if the device is one.

    `ray://HOST:PORT` is the address of a Ray client server. Without an address, the engine uses the runtime that the
    program has initialised, else the cluster of `RAY_ADDRESS`, else it starts one with `jobs` CPUs on this machine.
    """

    def __init__(self, jobs: int = 1, address: str = "") -> None:
        self.address = address or environment.ray_address() or ""
        if not self.address:
            environment.keep_ray_on_loopback()
        self._ray = import_extra("ray", "ray", "the engine ray")
        if self.address.startswith("ray://"):
            import_extra("grpc", "ray", "the engine ray://")
        self.jobs = jobs
        self.device: str | None = None

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Finished]:
        """Run all units and yield each with its result as they finish."""
        ray: Any = self._ray
        data = pack(work, import_extra("ray.cloudpickle", "ray", "the engine ray").dumps)
        with self._runtime():
            gpus = 1 if (self.device or "").startswith("cuda") else 0
            function = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_run)
            about, shared = sender(self.device), ray.put(data)
            submitted = dict[Future[bytes], Any]()

            def submit(unit: bytes, workers: int) -> Future[bytes]:
                task = function.remote({**about, "workers": workers}, shared, unit)
                future: Future[bytes] = task.future()
                submitted[future] = task
                future.add_done_callback(submitted.pop)
                return future

            def explain(error: Exception) -> Exception:
                errors = ray.exceptions
                gone = (
                    errors.WorkerCrashedError,
                    errors.OutOfMemoryError,
                    errors.NodeDiedError,
                    errors.ObjectLostError,
                )
                if isinstance(error, gone):
                    return worker_died("the Ray cluster", error)
                raise lost(self.address, error) from error

            def count() -> int:
                try:
                    return int(ray.cluster_resources().get("GPU" if gpus else "CPU", 0))
                except Exception as error:
                    raise lost(self.address, error) from error

            try:
                yield from run_all(submit, units, Cluster(count, self.address), explain)
            finally:
                for task in list(submitted.values()):
                    with contextlib.suppress(Exception):  # the cluster may be gone
                        ray.cancel(task, force=True)
                # Threads of Ray that set a result while the interpreter exits would crash it.
                wait(list(submitted), CANCEL_TIMEOUT)

    @contextlib.contextmanager
    def _runtime(self) -> Iterator[None]:
        if self._ray.is_initialized():
            yield
            return
        if ":" in self.address:  # not auto or local; Ray itself would try for minutes
            reach(self.address if "://" in self.address else f"ray://{self.address}")
        # Ray installs signal handlers if it starts in the main thread: SIGTERM would end this process with another
        # status and without closing anything. Its processes end with the thread that started them.
        with ThreadPoolExecutor(1, "tarmac-ray") as home:
            try:
                with hold():
                    self._connect(home)
                    reinstall_handlers()
                yield
            finally:
                home.submit(self._ray.shutdown).result()

    def _connect(self, home: ThreadPoolExecutor) -> None:
        """Start Ray, or connect to a cluster; several times, if the cluster does not accept the connection."""
        for attempt in range(CONNECT_ATTEMPTS):
            try:
                home.submit(self._init).result()
                break
            except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
                if not self.address:
                    raise EngineError(f"cannot start Ray: {error}.") from error
                if not isinstance(error, ConnectionAbortedError) or attempt + 1 == CONNECT_ATTEMPTS:
                    raise unreachable(self.address, error) from error
            home.submit(self._ray.shutdown).result()
            time.sleep(CONNECT_PAUSE * 2**attempt)

    def _init(self) -> None:
        # The object store holds the work alone.
        local = {"num_cpus": self.jobs, "include_dashboard": False, "object_store_memory": 128 * MIB}
        logger = logging.getLogger("ray._private.worker")
        logger.addFilter(_not_about_signals)
        try:
            self._ray.init(
                self.address or "local",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if self.address else local),
            )
        finally:
            logger.removeFilter(_not_about_signals)


def _not_about_signals(record: logging.LogRecord) -> bool:
    return "SIGTERM handler is not set" not in record.getMessage()


def _run(about: Sender, work: bytes, unit: bytes) -> bytes:
    """Run one unit on a worker of Ray, which shows a task only the GPUs that are its own."""
    import ray

    worker = str(ray.get_runtime_context().get_worker_id())
    return run_sent(
        about, work, unit, zlib.crc32(worker.encode()) if "," in (about.get("device") or "") else 0
    )
