"""Run units on a Spark cluster: each is a job of one task, so that its result arrives when it ends."""

from __future__ import annotations

import contextlib
import itertools
import sys
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from tarmac import environment
from tarmac.errors import EngineError, UsageError
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
from tarmac.runtime.preemption import hold

HINT = "stop it, or start the job in another process."
MAX_THREADS = 1000
"""Threads of the driver, each of which waits for a unit."""


class SparkEngine:
    """Run units as Spark jobs of one task.

    `spark://HOST:PORT` is the address of a master. Without an address, the engine uses the active session of the
    program, else the master of `SPARK_MASTER` or of spark-defaults.conf, else it starts Spark with `jobs` threads on
    this machine.
    """

    def __init__(self, jobs: int = 1, address: str = "") -> None:
        self._sql = import_extra("pyspark.sql", "spark", "the engine spark")
        self.jobs, self.address = jobs, address
        self.device: str | None = None

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Finished]:
        """Run all units and yield each with its result as they finish."""
        from pyspark import cloudpickle

        data = pack(work, cloudpickle.dumps)
        with (
            self.context() as (context, own),
            ThreadPoolExecutor(MAX_THREADS, "tarmac-spark") as threads,
            ThreadPoolExecutor(1, "tarmac-spark-count") as asking,
        ):
            group, shared, about = f"tarmac-{uuid.uuid4()}", context.broadcast(data), sender(self.device)
            master, numbers = self.address or str(context.master), itertools.count()

            def run_one(unit: bytes, workers: int) -> bytes:
                context.setJobGroup(group, "tarmac", interruptOnCancel=True)  # of this thread
                task = partial(_run, {**about, "workers": workers}, shared, next(numbers))
                (result,) = context.parallelize([unit], 1).map(task).collect()
                return bytes(result)

            def submit(unit: bytes, workers: int) -> Future[bytes]:
                return threads.submit(run_one, unit, workers)

            def explain(error: Exception) -> Exception:
                text = str(error)
                if "ExecutorLostFailure" in text or "Python worker exited unexpectedly" in text:
                    return worker_died("the Spark cluster", ChildProcessError(_reason(text)))
                if "PYTHON_VERSION_MISMATCH" in text:
                    raise EngineError(_reason(text), url=master, hint=SAME_PYTHON) from error
                raise lost(master, ConnectionError(_reason(text))) from error

            def count_here() -> int:
                try:
                    executors = context._jsc.sc().getExecutorMemoryStatus().size()
                    local = master.startswith("local")
                    return int(context.defaultParallelism) if local or executors > 1 else 0
                except Exception as error:
                    raise lost(master, error) from error

            def count() -> int:
                return asking.submit(
                    count_here
                ).result()  # not here: py4j logs a traceback if its call is interrupted

            try:
                yield from run_all(submit, units, Cluster(count, master), explain)
            finally:
                with contextlib.suppress(Exception):  # the cluster may be gone
                    if own:  # Java logs a traceback for each task that is cancelled
                        context.setLogLevel("OFF")
                    context.cancelJobGroup(group)
                threads.shutdown(wait=True, cancel_futures=True)
                with contextlib.suppress(Exception):
                    shared.destroy()

    @contextlib.contextmanager
    def context(self) -> Iterator[tuple[Any, bool]]:
        """Yield the Spark context, and whether this engine started it; such a one ends with its JVM."""
        from pyspark import SparkContext

        active = self._sql.SparkSession.getActiveSession()
        if active is None and SparkContext._active_spark_context is not None:
            active = self._sql.SparkSession(SparkContext._active_spark_context)
        if active is not None:
            if not hasattr(active, "_jsc"):
                what = "the active session is one of Spark Connect, which runs no Python tasks."
                raise UsageError(what, field="engine", hint=HINT)
            if self.address and active.sparkContext.master != self.address:
                what = f"the active session is one of {active.sparkContext.master}, not of {self.address}."
                raise UsageError(what, field="engine", hint=HINT)
            yield active.sparkContext, False
            return
        started = SparkContext._gateway is None
        try:
            context = self._started(SparkContext)
            try:
                yield context, True
            finally:
                context.stop()
        finally:
            if started:
                _end_java(SparkContext)

    def _started(self, kind: Any) -> Any:
        """Start Spark in a thread: an interrupted start would leave Java behind."""
        with ThreadPoolExecutor(1, "tarmac-spark-start") as thread:
            starting = thread.submit(self._start, kind)
            try:
                with hold():
                    return starting.result()
            except KeyboardInterrupt:
                starting.result().stop()
                raise

    def _start(self, kind: Any) -> Any:
        from pyspark import SparkConf

        master = self.address or environment.spark_master()
        if master and master.startswith("spark://"):
            reach(master.partition(",")[0])
        try:
            kind._ensure_initialized()  # Java reads spark-defaults.conf
            conf = SparkConf()
            configured = conf.get("spark.master")
            master = master or (configured if configured != "local[*]" else None) or f"local[{self.jobs}]"
            conf.setMaster(master).setAppName("tarmac").set("spark.ui.enabled", "false")
            conf.set("spark.ui.showConsoleProgress", "false").set("spark.log.level", "ERROR")
            if master.startswith("local"):
                conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
            context = kind(conf=conf)
        except Exception as error:
            raise unreachable(master or "spark", RuntimeError(_reason(str(error)))) from error
        if master.startswith("local"):
            context.pythonExec = sys.executable
        return context


SAME_PYTHON = "set PYSPARK_PYTHON to the same version of Python on all machines."


def _run(about: Sender, shared: Any, number: int, unit: bytes) -> bytes:
    """Run one unit in a Python worker of Spark; units use the devices of a list in turn."""
    from pyspark import TaskContext

    context = TaskContext.get()
    gpus = context.resources().get("gpu") if context else None
    if gpus and about.get("device") is None:
        about = {**about, "device": ",".join(f"cuda:{address}" for address in gpus.addresses[:1])}
    return run_sent(about, shared.value, unit, number)


def _reason(text: str) -> str:
    """Return the line of a message from Java that says what happened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "exited" in line or "xception" in line]
    return (telling or lines or ["no reason given"])[0][:300]


def _end_java(kind: Any) -> None:
    """End the Java process, which otherwise stays until this process ends."""
    gateway, kind._gateway, kind._jvm = kind._gateway, None, None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
