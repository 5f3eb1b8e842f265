"""Every test gives back what it took: descriptors, children, threads."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

# Indexes that are made on first use belong to these tests alone.
os.environ["TARMAC_HOME"] = tempfile.mkdtemp(prefix="tarmac-home-")
atexit.register(shutil.rmtree, os.environ["TARMAC_HOME"], ignore_errors=True)


def _descriptors() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = os.readlink(entry)
        except OSError:
            continue
    # Sockets, pipes and the epoll of a client library's runtime live as long as the process, by design.
    return {
        fd: name
        for fd, name in found.items()
        if not name.startswith(("socket:", "anon_inode:", "pipe:", "/dev/", "/proc/"))
    }


def _of_multiprocessing(child: psutil.Process) -> bool:
    """Python's own helpers, which stay until the interpreter ends."""
    try:
        command = " ".join(child.cmdline())
    except psutil.Error:
        return True
    return "multiprocessing.resource_tracker" in command or "multiprocessing.forkserver" in command


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves an open file or a child process behind."""
    gc.freeze()  # what was there before need not be looked through again
    before = _descriptors()
    children = {child.pid for child in psutil.Process().children()}
    yield
    deadline = time.monotonic() + 3
    while True:
        gc.collect()
        files = {fd: name for fd, name in _descriptors().items() if before.get(fd) != name}
        left = [child for child in psutil.Process().children() if child.pid not in children]
        left = [child for child in left if not _of_multiprocessing(child)]
        if (not files and not left) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert not files, f"left open: {files}"
    assert not left, f"left running: {[child.cmdline() for child in left]}"
    assert threading.active_count() < 50
