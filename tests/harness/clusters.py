"""Real clusters on loopback: Dask, Ray and Spark, each a context manager that leaves no process behind."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tarmac
from harness import MissingComponent, Plan, ServerFailed, running
from harness.waiting import until

SOURCES = str(Path(tarmac.__file__).parents[1])
NO_TARMAC = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tarmac":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""A sitecustomize module of machines on which tarmac is not installed."""


def import_path(*directories: str) -> str:
    """Return a PYTHONPATH with which other processes import the same tarmac as this one."""
    return os.pathsep.join([*directories, SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])])


def _needs(*libraries: str) -> None:
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            raise MissingComponent(f"{library} is not installed: see the extras dask, ray and spark")


def _program(command: list[str], ready: Callable[[], object], environment: Mapping[str, str]) -> Any:
    settings = [f"{name}={value}" for name, value in {"PYTHONPATH": import_path(), **environment}.items()]
    plan: Plan[None] = (["env", *settings, *command], ready, None)
    return running(lambda _home, _ports: plan, 0)


def _listening(port: int) -> Callable[[], object]:
    return lambda: socket.create_connection(("127.0.0.1", port), 5).close()


def free_port() -> int:
    """Return a port that was free a moment ago; programs of clusters cannot take over a reserved one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class DaskCluster:
    """A scheduler and its workers, each a process of its own."""

    port: int
    parts: contextlib.ExitStack
    """Ends the workers."""
    scheduler: contextlib.ExitStack
    """Ends the scheduler."""

    @property
    def engine(self) -> str:
        return f"dask://127.0.0.1:{self.port}"


@contextmanager
def dask_cluster(workers: int = 2, environment: Mapping[str, str] | None = None) -> Iterator[DaskCluster]:
    """Run a Dask scheduler and workers of one thread each, which restart when they are killed."""
    _needs("distributed")
    port, python = free_port(), [sys.executable, "-m"]
    dask = {
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",  # a unit that kills its workers kills two
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s",  # to one that was killed
    }
    host = ["--host", "127.0.0.1", "--no-dashboard"]
    start = [*python, "distributed.cli.dask_scheduler", "--port", str(port), *host]
    work = [*python, "distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1", *host]
    with contextlib.ExitStack() as scheduler, contextlib.ExitStack() as parts:
        scheduler.enter_context(_program(start, _listening(port), dask))
        for number in range(workers):
            command = [*work, "--name", f"w-{number}", "--memory-limit", "0"]
            parts.enter_context(_program(command, lambda: None, dask | (environment or {})))
        if workers:
            _wait_for_dask(port, workers)
        yield DaskCluster(port, parts, scheduler)


def _wait_for_dask(port: int, workers: int) -> None:
    import distributed

    with distributed.Client(f"tcp://127.0.0.1:{port}", set_as_default=False) as client:
        if not until(lambda: len(client.nthreads()) >= workers):
            raise ServerFailed("the workers of Dask did not start")


PATIENT_RAY = {
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "120",
    "RAY_CLIENT_INITIAL_CONNECTION_TIMEOUT_S": "60",
    "RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S": "120",
}
"""How long servers and clients of Ray wait for each other; by default a few seconds, too few for a busy machine."""


@contextmanager
def ray_cluster() -> Iterator[str]:
    """Run a Ray cluster of two CPUs with a client server; yields its address."""
    _needs("ray", "grpc")
    import tempfile

    port, client = free_port(), free_port()
    settings = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"} | PATIENT_RAY
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2",
            "--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client}",
            "--include-dashboard=false", "--object-store-memory=100000000", f"--temp-dir={folder}",
        ]  # fmt: skip
        with _program(command, _listening(client), settings):
            yield f"ray://127.0.0.1:{client}"


@contextmanager
def spark_cluster() -> Iterator[str]:
    """Run a Spark master and a worker of two cores; yields the address of the master."""
    _needs("pyspark")
    import pyspark

    home = Path(pyspark.__file__).parent
    port, settings = free_port(), {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    settings |= {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
    run = [str(home / "bin" / "spark-class")]
    host = ["--host", "127.0.0.1", "--webui-port", "0"]
    master = [*run, "org.apache.spark.deploy.master.Master", "--port", str(port), *host]
    url = f"spark://127.0.0.1:{port}"
    worker = [*run, "org.apache.spark.deploy.worker.Worker", "--cores", "2", "--memory", "1g", *host, url]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_scratch())
        stack.enter_context(_program(master, _listening(port), settings))
        stack.enter_context(_program([*worker, "--work-dir", folder], lambda: None, settings))
        yield url


@contextmanager
def _scratch() -> Iterator[str]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="tarmac-spark-", ignore_cleanup_errors=True) as folder:
        yield folder
