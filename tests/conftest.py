"""Check that tests release descriptors, child processes and threads."""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from harness.waiting import until

# How long an example takes says nothing on a busy machine.
settings.register_profile("tarmac", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tarmac")

# A shell that runs the tests in the background ignores Ctrl-C, and programs that tests start inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Indexes that are made on first use belong to these tests alone.
os.environ["TARMAC_HOME"] = tempfile.mkdtemp(prefix="tarmac-home-")
atexit.register(shutil.rmtree, os.environ["TARMAC_HOME"], ignore_errors=True)
# Profiles of the developer are not part of the tests.
os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = "/nonexistent"


LEAVING = 30.0
"""Seconds that a child has to end after its test; on a quiet machine it needs none."""


def _descriptors() -> dict[str, str]:
    descriptors = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            descriptors[entry.name] = os.readlink(entry)
        except OSError:
            continue
    # Sockets, pipes and the epoll of a client library's runtime live as long as the process, by design.
    return {
        fd: name
        for fd, name in descriptors.items()
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

    def open_files() -> dict[str, str]:
        gc.collect()
        return {fd: name for fd, name in _descriptors().items() if before.get(fd) != name}

    def running() -> list[psutil.Process]:
        left = [child for child in psutil.Process().children() if child.pid not in children]
        return [child for child in left if not _of_multiprocessing(child)]

    if not until(lambda: not open_files() and not running(), LEAVING, 0.05):
        assert not open_files(), f"left open: {open_files()}"
        assert not running(), f"left running: {[child.cmdline() for child in running()]}"
    # A test server has a thread for each connection that a client keeps open.
    assert sum("process_request_thread" not in thread.name for thread in threading.enumerate()) < 50


@pytest.fixture(autouse=True, scope="session")
def no_files_left(request) -> Iterator[None]:
    """Fail a run that leaves files beside the sources: outputs and part files belong to temporary directories."""
    before = set(request.config.rootpath.iterdir())
    yield
    left = {path.name for path in set(request.config.rootpath.iterdir()) - before}
    assert not [name for name in left if ".part-" in name or name.endswith((".tar", ".arrow"))]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """Ignore the rank, worker and seed settings of the machine."""
    for name in ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS", "WDS_SEED", "WDS_SHOW_SEED"):
        monkeypatch.delenv(name, raising=False)


def pytest_make_parametrize_id(config, val, argname):
    """Name byte strings by their length: compressed data may contain the time of day."""
    return f"{argname}-{len(val)}-bytes" if isinstance(val, bytes) and not val.isalnum() else None


# Files that `--quick` leaves out: those that need servers, torch, other programs or processes, and those of long laws.
_SLOW = re.compile(
    r"^\s*(?:import|from) (?:subprocess|multiprocessing|torch|torchdata|lightning|transformers|webdataset|wids"
    r"|distributed|cloudpickle|tarmac_native|storage\.|fuzz"
    r"|harness\.(?:anywhere|clusters|engines|slurm|servers|crash|faultserver|oracle|readers|memory))\b"
    r"|\bjobs=[2-9]|processes=[1-9]",
    re.MULTILINE,
)
_LONG = frozenset(
    (
        "test_access.py",
        "test_reader_damage.py",
        "test_resume_law.py",
        "test_roundtrip.py",
        "test_share_law.py",
        "test_docs.py",
        "test_doors.py",
        "test_earlier_jobs.py",
        "test_hostile_lists.py",
        "test_native.py",
        "test_objects.py",
        "test_secrets.py",
        "test_tally.py",
        "test_translations.py",
    )
)


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="only tests without servers, torch and processes")


def pytest_configure(config):
    """Look at fewer examples with --quick."""
    if config.getoption("--quick"):
        settings.register_profile("quick", settings.get_profile("tarmac"), max_examples=25)
        settings.load_profile("quick")


_PROCESSES = {"os.fork", "os.posix_spawn", "os.system", "socket.bind", "subprocess.Popen"}
"""The audit events of new processes and of servers."""


@pytest.fixture(scope="session")
def started() -> list[str]:
    """Return the processes and servers that the current test has started."""
    started: list[str] = []
    sys.addaudithook(lambda event, _: started.append(event) if event in _PROCESSES else None)
    return started


@pytest.fixture(autouse=True)
def only_marked_tests_start_processes(request, started) -> Iterator[None]:
    """Fail a test of the quick lane that starts a process or a server."""
    started.clear()
    yield
    if request.config.getoption("--quick"):
        assert not started, "mark this test with pytest.mark.processes"


def pytest_collection_modifyitems(config, items):
    """Leave out marked tests with --quick."""
    if config.getoption("--quick"):
        left_out = [
            item for item in items if item.get_closest_marker("processes") or item.get_closest_marker("long")
        ]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_ignore_collect(collection_path, config):
    """Leave out slow files with --quick."""
    path = Path(collection_path)
    if not config.getoption("--quick") or path.suffix != ".py" or not path.name.startswith("test_"):
        return None
    return path.name in _LONG or bool(_SLOW.search(path.read_text())) or None
