"""Fault injection for file system calls: the N-th call fails with a given error.

As SQLite does it: an operation is run again and again, the first time with its first system call
failing, then its second, and so on, until it succeeds because there was no call left to fail.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

CALLS = ("open", "write", "fsync", "link", "replace", "close")
SHORT = "short write"
ERRORS: tuple[int | str, ...] = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, SHORT)


@dataclass
class Fault:
    """Fail the `number`-th (from 1) of the named calls; `fired` is whether it was reached."""

    number: int
    kind: int | str = errno.EIO
    calls: tuple[str, ...] = CALLS
    seen: int = 0
    fired: str = ""

    def _hits(self, name: str) -> bool:
        if self.kind == SHORT and name != "write":
            return False
        self.seen += 1
        return self.seen == self.number


@contextmanager
def faulty(fault: Fault, under: Path | None = None) -> Iterator[Fault]:
    """Inject one fault into the calls of `os`; with `under`, only files below it fail to open."""
    real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in fault.calls}

    def wrap(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            elsewhere = (
                name == "open" and under is not None and not _path(*args, **kwargs).startswith(str(under))
            )
            if elsewhere or not fault._hits(name):
                return real[name](*args, **kwargs)
            fault.fired = name
            if fault.kind == SHORT:
                return real[name](args[0], memoryview(args[1])[: max(1, len(args[1]) // 3)])
            if name == "close":
                real[name](*args)  # Linux releases the descriptor even if close fails
            assert isinstance(fault.kind, int)
            raise OSError(fault.kind, os.strerror(fault.kind))

        return call

    wrapped = {name: wrap(name) for name in fault.calls}
    if "write" in wrapped:  # writev is a write, too
        wrapped["writev"] = lambda fd, parts: wrapped["write"](fd, b"".join(parts))
    with patch.multiple(os, **wrapped):
        yield fault


def _path(name: Any, *_: Any, dir_fd: int | None = None, **__: Any) -> str:
    """Return the path of the file to open, which may be relative to an open directory."""
    return str(name) if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), str(name))


def every_fault(kind: int | str, calls: tuple[str, ...] = CALLS, most: int = 1000) -> Iterator[Fault]:
    """Yield faults at the first call, the second, … until one is not reached."""
    for number in range(1, most):
        fault = Fault(number, kind, calls)
        yield fault
        if not fault.fired:
            return
    raise AssertionError(f"still failing at call {most}")


def descriptors() -> set[tuple[str, str]]:
    """Return the open files of this process: each descriptor with what it refers to.

    Compare with `descriptors() - before`: a connection that an earlier test left idle may close at any time.
    """
    gc.collect()  # nor must files that are garbage close in the middle of a listing
    files = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            files.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
    return files


BOUNDARIES = (
    "open",
    "mkdir",
    "stat",
    "fstat",
    "listdir",
    "write",
    "replace",
    "link",
    "unlink",
    "utime",
    "close",
)


@contextmanager
def interrupted(
    number: int, action: Callable[[], object], calls: tuple[str, ...] = BOUNDARIES
) -> Iterator[list[str]]:
    """Run an action just before the `number`-th (from 1) of the named calls, as another process could.

    Yield the list of calls so far; if there are fewer than `number`, the action did not run.
    """
    real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in calls}
    seen: list[str] = []

    def wrap(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(seen) < number:
                seen.append(name)
                if len(seen) == number:
                    action()
            return real[name](*args, **kwargs)

        return call

    with patch.multiple(os, **{name: wrap(name) for name in calls}):
        yield seen
