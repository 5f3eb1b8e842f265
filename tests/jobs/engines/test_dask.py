"""The engine dask, with a real scheduler and workers."""

from __future__ import annotations

import re
import signal
import sys
import threading

import distributed
import pytest

import tarmac
from harness import engines, required, reserved_ports
from harness.clusters import NO_TARMAC, dask_cluster
from harness.waiting import until
from tarmac.errors import EngineError, UsageError
from tarmac.extras import MissingExtra
from tarmac.jobs.engines import make_engine, remote
from tarmac.jobs.task import Unit

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster():
    with required(dask_cluster()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def engine(cluster):
    return cluster.engine


def test_the_bytes_of_one_process(engine, tmp_path, monkeypatch):
    engines.check_same_bytes(engine, tmp_path, monkeypatch)


def test_units_know_the_number_of_workers(engine, tmp_path):
    engines.check_number_of_workers(engine, tmp_path)


def test_a_function_of_main_on_a_cluster_of_the_engine(tmp_path):
    engines.check_main("dask", tmp_path)


def test_functions_that_workers_cannot_run(engine, tmp_path, monkeypatch):
    engines.check_errors_of_functions(engine, tmp_path, monkeypatch)


def test_other_versions(engine, tmp_path, monkeypatch):
    engines.check_versions(engine, tmp_path, monkeypatch)


def test_a_killed_worker(engine, tmp_path):
    engines.check_killed_worker(engine, tmp_path)


def test_a_worker_that_is_killed_once_is_replaced(engine, tmp_path):
    shards, function = engines.make_shards(tmp_path), f"{tmp_path}/functions.py"
    tarmac.map(shards, f"{tmp_path}/local/", f"{function}:shout", jobs=1)
    tarmac.map(shards, f"{tmp_path}/out/", f"{function}:dies_once", engine=engine)
    assert (tmp_path / "killed").exists()
    assert engines.digests(tmp_path / "out") == engines.digests(tmp_path / "local")


def test_workers_run_the_files_of_the_next_job(engine, tmp_path):
    """A worker has imported the function of an earlier job, and what that imports."""
    shards = engines.make_shards(tmp_path)
    for version in (b"1", b"2"):
        (tmp_path / "imported_by_next.py").write_text(f"def text():\n    return {version}\n")
        (tmp_path / "next.py").write_text(
            "from imported_by_next import text\n"
            f"def work(sample):\n    return sample | {{'txt': text(), 'more': {version}}}\n"
        )
        done = engines.command(
            ["map", shards, "--py", "next.py:work", "-o", f"{version.decode()}/", "--engine", engine],
            tmp_path,
        )
        assert done.returncode == 0, done.stderr
        written = {
            (each["txt"], each["more"]) for each in tarmac.read(f"{tmp_path}/{version.decode()}/*.tar")
        }
        assert written == {(version, version)}


def test_two_deliveries(engine, tmp_path):
    engines.check_two_deliveries(engine, tmp_path)


def test_units_are_taken_as_workers_become_free(engine, tmp_path):
    engines.check_lazy(engine, tmp_path)


def test_the_client_of_the_program(cluster, tmp_path):
    shards = engines.make_shards(tmp_path)
    with distributed.Client(f"tcp://127.0.0.1:{cluster.port}") as client:
        tarmac.copy(shards, f"{tmp_path}/out/", engine="dask")
        assert client.status == "running"
    assert len(list(tarmac.read(f"{tmp_path}/out/*.tar"))) == 24


def test_devices(engine, tmp_path):
    """Each worker has its own device and calls `setup` once, however many units it runs."""
    shards = engines.make_shards(tmp_path)
    tarmac.map(
        shards, f"{tmp_path}/out/", f"{tmp_path}/functions.py:Device", engine=engine, device="cpu:0,cpu:1"
    )
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    setups = {worker: device for what, worker, device in (line for line in lines if line[0] == "setup")}
    assert len(setups) == len(lines)
    assert len(set(setups.values())) == len(setups)
    used = {sample["device"].decode() for sample in tarmac.read(f"{tmp_path}/out/*.tar")}
    assert used == set(setups.values()) <= {"cpu:0", "cpu:1"}


def test_unreachable_addresses(tmp_path):
    shards = engines.make_shards(tmp_path)
    with reserved_ports(1) as (port,):
        with pytest.raises(EngineError, match=rf"dask://127.0.0.1:{port}.*cannot connect"):
            tarmac.copy(shards, f"{tmp_path}/out/", engine=f"dask://127.0.0.1:{port}")
    for address in ("dask://", "dask://host", "dask://host:x"):
        with pytest.raises(UsageError) as caught:
            tarmac.copy(shards, f"{tmp_path}/out/", engine=address)
        assert caught.value.field == "engine"
    assert not list(tmp_path.glob("out/*.tar"))


def test_a_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=re.escape("tarmac-data[dask]")):
        make_engine("dask://host:1")


def test_tarmac_is_not_installed_on_a_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "NO_WORKERS", 30)
    (tmp_path / "sitecustomize.py").write_text(NO_TARMAC)
    with required(dask_cluster(1, {"PYTHONPATH": str(tmp_path)})) as cluster:
        with pytest.raises(EngineError, match="not installed on a worker"):
            tarmac.copy(engines.make_shards(tmp_path), f"{tmp_path}/out/", engine=cluster.engine)


def test_a_cluster_without_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "NO_WORKERS", 0.5)
    with required(dask_cluster(0)) as cluster:
        with pytest.raises(EngineError, match="no workers"):
            tarmac.copy(engines.make_shards(tmp_path), f"{tmp_path}/out/", engine=cluster.engine)


def test_a_scheduler_that_is_lost(tmp_path):
    started = tmp_path / "started"

    def work(unit):
        import time

        started.touch()
        time.sleep(10_000)

    with required(dask_cluster(1)) as cluster:
        ending = threading.Thread(target=lambda: until(started.exists) and cluster.scheduler.close())
        ending.start()
        with pytest.raises(EngineError, match="lost the connection"):
            list(make_engine(cluster.engine).run(work, [Unit("/a"), Unit("/b")]))
        ending.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(tmp_path, number):
    engines.check_signal("dask", tmp_path, number)
