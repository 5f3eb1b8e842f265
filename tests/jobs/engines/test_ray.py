"""The engine ray, with a real cluster."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import sys

import pytest

from harness import engines, required, reserved_ports
from harness.clusters import PATIENT_RAY, ray_cluster
from tarmac.errors import EngineError
from tarmac.extras import MissingExtra
from tarmac.jobs.engines import make_engine
from tarmac.jobs.engines import ray as ray_engine

pytestmark = [
    pytest.mark.processes,
    # Ray leaves files open that its own workers wrote.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
    ),
]


@pytest.fixture(scope="module")
def engine():
    """A Ray runtime that the program has initialised."""
    make_engine("ray")  # the environment, before ray is imported
    import ray

    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        object_store_memory=100 << 20,
    )  # fmt: skip
    yield "ray"
    ray.shutdown()


def test_functions_that_workers_cannot_run(engine, tmp_path, monkeypatch):
    engines.check_errors_of_functions(engine, tmp_path, monkeypatch)


def test_other_versions(engine, tmp_path, monkeypatch):
    engines.check_versions(engine, tmp_path, monkeypatch)


def test_a_killed_worker(engine, tmp_path):
    engines.check_killed_worker(engine, tmp_path)


def test_two_deliveries(engine, tmp_path):
    engines.check_two_deliveries(engine, tmp_path)


def test_units_are_taken_as_workers_become_free(engine, tmp_path):
    engines.check_lazy(engine, tmp_path)


def test_units_know_the_number_of_workers(engine, tmp_path):
    engines.check_number_of_workers(engine, tmp_path)


def test_a_function_of_main_on_a_cluster_of_the_engine(tmp_path):
    engines.check_main("ray", tmp_path)


def test_the_bytes_of_one_process_on_a_cluster_at_an_address(tmp_path):
    code = (
        "import sys, pathlib, pytest; from harness import engines\n"
        "with pytest.MonkeyPatch.context() as patch:\n"
        "    engines.check_same_bytes(sys.argv[1], pathlib.Path(sys.argv[2]), patch)"
    )
    with required(ray_cluster()) as address:
        done = engines.script(["-c", code, address, str(tmp_path)], tmp_path, **PATIENT_RAY)
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class Busy:
    """A Ray whose head node fails to start the server of a client, a number of times."""

    def __init__(self, failures):
        self.failures = failures

    def is_initialized(self):
        return False

    def init(self, *args, **options):
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionAbortedError("Starting Ray client server failed")

    def shutdown(self):
        pass


def test_a_busy_head_node(monkeypatch):
    monkeypatch.setattr(ray_engine, "CONNECT_PAUSE", 0.0)
    with listener() as port:
        engine = make_engine(f"ray://127.0.0.1:{port}")
        for failures in (0, 1, 3):
            engine._ray = Busy(failures)
            with engine._runtime():
                assert engine._ray.failures == -1
        engine._ray = Busy(4)
        with pytest.raises(EngineError, match="Starting Ray client server failed"), engine._runtime():
            pass


def test_unreachable_addresses(tmp_path):
    shards = engines.make_shards(tmp_path)
    with reserved_ports(1) as (port,):
        done = engines.command(
            ["copy", shards, "-o", "out/", "--engine", f"ray://127.0.0.1:{port}"], tmp_path
        )
        assert f"ray://127.0.0.1:{port}" in done.stderr
        assert "cannot connect" in done.stderr
        assert done.returncode != 0
        done = engines.command(
            ["copy", shards, "-o", "out/", "--engine", "ray"], tmp_path, RAY_ADDRESS=f"127.0.0.1:{port}"
        )
        assert "cannot connect" in done.stderr
    assert not list(tmp_path.glob("out/*.tar"))


def test_a_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=re.escape("tarmac-data[ray]")):
        make_engine("ray")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(tmp_path, number):
    engines.check_signal("ray", tmp_path, number)
