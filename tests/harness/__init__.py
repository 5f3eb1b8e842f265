"""Servers for tests and benchmarks: real ones, and one that fails on purpose.

Here is what they share: running a program for a while, and saying that one is missing.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar

from obstore.exceptions import BaseError

T = TypeVar("T")
Plan = tuple[list[str], Callable[[], object], T]  # a command, a check that raises until ready, the server

_START_SECONDS = 60.0
_STARTS = 3  # another process may take a port between our choice and the server's start


class MissingComponent(Exception):
    """A program that a server needs is not installed."""


class ServerFailed(RuntimeError):
    """A server did not start, or refused what the harness needs of it."""


@contextmanager
def required(server: AbstractContextManager[T]) -> Iterator[T]:
    """Enter a server; where its program is missing, skip the test (fail it if CI is set)."""
    import pytest  # benchmarks import this module without pytest

    with contextlib.ExitStack() as stack:
        try:
            value = stack.enter_context(server)
        except MissingComponent as missing:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))
        yield value


def free_ports(count: int) -> list[int]:
    """Pick distinct free ports below the range the system gives to outgoing connections."""
    ports: set[int] = set()
    while len(ports) < count:
        port = random.SystemRandom().randrange(12000, 32000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)


@contextmanager
def running(plan: Callable[[Path], Plan[T]]) -> Iterator[T]:
    """Run what `plan` says in a new directory and a new process group until the context exits.

    The plan picks its ports; it is made anew after a failed start, as one may have been taken.
    """
    for _ in range(_STARTS):
        with tempfile.TemporaryDirectory(prefix="tarmac-server-", ignore_cleanup_errors=True) as home:
            command, ready, server = plan(Path(home))
            log = Path(home, "output.log")
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command, cwd=home, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                )  # fmt: skip
            try:
                if _answers(process, ready):
                    yield server
                    return
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            end_of_log = log.read_text(errors="replace")[-2000:]
    raise ServerFailed(f"{command[0]} did not start:\n{end_of_log}")


def _answers(process: subprocess.Popen[bytes], ready: Callable[[], object]) -> bool:
    """Wait until the server answers; False if it ended or took too long."""
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, HTTPException, BaseError, ServerFailed):
            ready()
            return True
        time.sleep(0.02)
    return False


def rounds(count: int) -> int:
    """How often to repeat: `count` in make test, TARMAC_TORTURE times as often in make torture."""
    return count * int(os.environ.get("TARMAC_TORTURE", "1"))
