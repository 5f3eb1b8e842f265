"""Servers for tests and benchmarks: real ones, and one that fails on purpose.

Here is what they share: running a program for a while, and saying that one is missing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar

import psutil
from obstore.exceptions import BaseError

from harness.waiting import gone, until

T = TypeVar("T")
Plan = tuple[list[str], Callable[[], object], T]  # a command, a check that raises until ready, the server

_START_SECONDS = 300.0


class MissingComponent(Exception):
    """A program that a server needs is not installed."""


class ServerFailed(RuntimeError):
    """A server did not start, or rejected a request of the harness."""


@contextmanager
def required(server: AbstractContextManager[T]) -> Iterator[T]:
    """Start a server; skip the test if its program is missing (fail it if CI is set)."""
    import pytest  # benchmarks import this module without pytest

    with contextlib.ExitStack() as stack:
        try:
            value = stack.enter_context(server)
        except MissingComponent as missing:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))
        yield value


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Reserve free ports for external servers; connections to unused ones are refused.

    The sockets are bound and do not listen. The system assigns their ports to no other process, and a server that binds
    one by its number, with SO_REUSEADDR as all servers here do, gets it.
    """
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [each.getsockname()[1] for each in sockets]


@contextmanager
def running(plan: Callable[[Path, list[int]], Plan[T]], ports: int) -> Iterator[T]:
    """Run the command of `plan` in a new directory and process group until the context exits.

    The plan gets the directory and the reserved ports.
    """
    with (
        reserved_ports(ports) as numbers,
        tempfile.TemporaryDirectory(prefix="tarmac-server-", ignore_cleanup_errors=True) as home,
    ):
        command, ready, server = plan(Path(home), numbers)
        log = Path(home, "output.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=home, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            if not _answers(process, ready):
                said = log.read_text(errors="replace")[-2000:]
                raise ServerFailed(f"{command[0]} did not start:\n{said}")
            yield server
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a server and its children, and wait for all of them, since each may hold the port."""
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    gone(family)


def _answers(process: subprocess.Popen[bytes], ready: Callable[[], object]) -> bool:
    """Wait until the server answers; return False if it exited or timed out."""

    def answers() -> bool:
        with contextlib.suppress(OSError, HTTPException, BaseError, ServerFailed):
            ready()
            return True
        return False

    ended_or_up = until(lambda: process.poll() is not None or answers(), _START_SECONDS, 0.02)
    return ended_or_up and process.poll() is None


def rounds(count: int) -> int:
    """Return the number of repetitions: `count`, times TARMAC_TORTURE in make torture."""
    return count * int(os.environ.get("TARMAC_TORTURE", "1"))
