"""Send units to workers of a cluster and run them there: what the engines dask, ray and spark share.

A worker gets the name of a function of this package and bytes: the pickled work and the pickled unit, and beside them
a description of the sender. It compares versions before it unpickles anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import tarmac
from tarmac.errors import EngineError, NotPicklable, UsageError, WorkerDied
from tarmac.jobs.engines import Finished, Work
from tarmac.jobs.task import Outcome, Unit
from tarmac.plugins import load_plugins, plugins_loaded
from tarmac.runtime.crew import one_of
from tarmac.runtime.device import assign_device, using_device
from tarmac.runtime.lookahead import PER_WORKER, WAKE_UP
from tarmac.runtime.processes import sendable_error
from tarmac.storage import is_local

CONNECT_TIMEOUT = 10.0
"""Seconds to wait for the scheduler of a cluster."""
NO_WORKERS = 300.0
"""Seconds to wait for the first worker of a cluster, or for one after the last has gone."""
REFRESH = 1.0
"""Seconds between two questions about the size of a cluster."""
CLONE_FS = 0x200
Sender = Mapping[str, Any]
"""Plain values only: the worker may have another version of tarmac."""


def sender(device: str | None) -> Sender:
    """Describe this process for the workers."""
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "tarmac": tarmac.__version__,
        "directory": os.getcwd(),
        "plugins": plugins_loaded(),
        "device": device,
    }


def pack(work: Work, dumps: Callable[[Any], bytes]) -> bytes:
    """Pickle the work with the library's own function, which also takes lambdas and functions of `__main__`."""
    try:
        return dumps(work)
    except Exception as error:
        raise NotPicklable(f"cannot send the work to the workers: {error}.") from error


def run_sent(sender: Sender, work: bytes, unit: bytes, slot: int = 0) -> bytes:
    """Run one unit on a worker. Return its pickled outcome, or the error that it raised.

    `slot` is the number of the worker, which selects its device.
    """
    result: Outcome | Exception
    try:
        _check_versions(sender)
        if sender["plugins"]:
            load_plugins(warn=False)
        function, item = _load(work), _load_fresh(unit)
        device = assign_device(sender["device"], slot)
        with _in_directory(sender["directory"], item), using_device(device), one_of(sender.get("workers")):
            result = function(item)
    except Exception as error:
        result = sendable_error(error, f"a worker on {_host()}")
    return pickle.dumps(result)


def _check_versions(sender: Sender) -> None:
    own = {"python": f"{sys.version_info.major}.{sys.version_info.minor}", "tarmac": tarmac.__version__}
    for name, version in own.items():
        if sender.get(name) != version:
            what = f"the worker on {_host()} has {name} {version}, this process has {sender.get(name)}."
            raise EngineError(what, hint="install the same versions of Python and tarmac on all workers.")


def _load_fresh(data: bytes) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301 - what our own engine sent
    except ModuleNotFoundError as error:
        raise EngineError(
            f"the worker on {_host()} cannot import {error.name}.",
            hint="install the module on the workers, or name the function as FILE.py:FUNCTION on a path that they see.",
        ) from error
    except (ImportError, AttributeError) as error:
        raise EngineError(
            f"the worker on {_host()} cannot load the work: {error}.",
            hint="install the same version of your module on all workers.",
        ) from error


# The work of the latest job stays loaded, so that what its function has set up serves all units of a process.
_load = lru_cache(maxsize=1)(_load_fresh)


@contextlib.contextmanager
def _in_directory(path: str, unit: Any) -> Iterator[None]:
    """Run in the directory of the sender, because paths may be relative."""
    if not os.path.isdir(path):
        name = getattr(unit, "name", "")
        if is_local(name) and not os.path.isabs(name):
            what = f"the worker on {_host()} has no directory {path}."
            raise EngineError(
                what, url=name, hint="absolute paths in a directory that all workers share, or URLs."
            )
        yield
        return
    if sys.platform == "linux":  # of this thread alone: a worker may have others
        ctypes.CDLL(None).unshare(CLONE_FS)
    with contextlib.chdir(path):
        yield


def _host() -> str:
    return socket.gethostname()


def run_all(
    submit: Callable[[bytes, int], Future[bytes]],
    units: Iterable[Unit],
    cluster: Cluster,
    explain: Callable[[Exception], Exception],
) -> Iterator[Finished]:
    """Yield units with their results as they finish; twice as many as there are workers are submitted at a time.

    `submit` gets a unit and the number of workers.
    `explain` turns an exception of the library into the error of a unit, or raises that of the whole cluster.
    """
    rest, running = iter(units), dict[Future[bytes], Unit]()
    while True:
        workers = cluster.slots()
        for unit in islice(rest, max(workers * PER_WORKER - len(running), 0)):
            running[submit(pickle.dumps(unit), workers)] = unit
        if not running:
            return
        for future in wait(running, WAKE_UP, FIRST_COMPLETED).done:
            yield running.pop(future), _result(future, explain)


def _result(future: Future[bytes], explain: Callable[[Exception], Exception]) -> Outcome | Exception:
    try:
        data = future.result()
    except Exception as error:
        if missing_tarmac(error):
            raise EngineError(
                "tarmac is not installed on a worker.",
                hint="install the same version of tarmac on all workers.",
            ) from error
        return explain(error)
    result: Outcome | Exception = pickle.loads(data)  # noqa: S301 - what our own worker sent
    return result


def missing_tarmac(error: BaseException) -> bool:
    """Return whether a worker could not import tarmac; libraries wrap that error, or quote it."""
    return "No module named 'tarmac" in f"{error} {error.__cause__}"


class Cluster:
    """The number of workers of a cluster, which may change while a job runs.

    It is an error if there are none for a long time.
    """

    def __init__(self, count: Callable[[], int], address: str) -> None:
        self._count, self._address = count, address
        self._slots, self._asked, self._seen = 0, float("-inf"), time.monotonic()

    def slots(self) -> int:
        """Return how many units the cluster can run at a time: at least 1."""
        now = time.monotonic()
        if now - self._asked >= REFRESH:
            self._slots, self._asked = self._count(), now
            if self._slots > 0:
                self._seen = now
            elif now - self._seen > NO_WORKERS:
                what = f"the cluster has had no workers for {NO_WORKERS:.0f} seconds."
                raise EngineError(
                    what, url=self._address, hint="start workers and run the same command again."
                )
        return max(self._slots, 1)


def worker_died(where: str, error: Exception) -> WorkerDied:
    """Return the error of a unit whose worker is gone."""
    return WorkerDied(
        f"a worker of {where} died: {_one_line(error)}.",
        hint="run the same command again, with fewer processes if memory ran out.",
    )


def lost(address: str, error: BaseException) -> EngineError:
    """Return the error of a cluster that stopped answering."""
    return EngineError(
        f"lost the connection to the cluster: {_one_line(error)}.",
        url=address,
        hint="run the same command again when the cluster is up; finished outputs are kept.",
    )


def reach(address: str) -> None:
    """Raise EngineError unless something listens at the address of a cluster."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise UsageError(f"expected {urlsplit(address).scheme}://HOST:PORT, got {address!r}.", field="engine")
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise unreachable(address, error) from error


def unreachable(address: str, error: BaseException) -> EngineError:
    """Return the error of a cluster that does not answer."""
    return EngineError(
        f"cannot connect to the cluster: {_one_line(error)}.",
        url=address,
        hint="start the cluster, or correct the address that `engine` has.",
    )


def _one_line(error: BaseException) -> str:
    """Return the first line of a message, and its last if that says what the first announces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return text[:300].rstrip(".")
