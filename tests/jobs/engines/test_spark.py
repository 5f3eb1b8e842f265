"""The engine spark, with Spark on this machine and with a real master and worker."""

from __future__ import annotations

import re
import signal
import sys

import pytest

from harness import engines, required, reserved_ports
from harness.clusters import spark_cluster
from tarmac.extras import MissingExtra
from tarmac.jobs.engines import make_engine

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def engine():
    """The active session of the program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        inner = make_engine("spark", 2)
        with inner.context():
            yield "spark"


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
    engines.check_main("spark", tmp_path)


def test_the_bytes_of_one_process_on_a_cluster_at_an_address(tmp_path):
    settings = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    code = (
        "import sys, pathlib, pytest; from harness import engines\n"
        "with pytest.MonkeyPatch.context() as patch:\n"
        "    engines.check_same_bytes(sys.argv[1], pathlib.Path(sys.argv[2]), patch)"
    )
    with required(spark_cluster()) as address:
        done = engines.script(["-c", code, address, str(tmp_path)], tmp_path, **settings)
        assert done.returncode == 0, done.stderr


def test_unreachable_addresses(tmp_path):
    shards = engines.make_shards(tmp_path)
    with reserved_ports(1) as (port,):
        done = engines.command(
            ["copy", shards, "-o", "out/", "--engine", f"spark://127.0.0.1:{port}"], tmp_path
        )
        assert f"spark://127.0.0.1:{port}" in done.stderr
        assert "cannot connect" in done.stderr
        assert done.returncode != 0
    assert not list(tmp_path.glob("out/*.tar"))


def test_a_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(MissingExtra, match=re.escape("tarmac-data[spark]")):
        make_engine("spark")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(tmp_path, number):
    engines.check_signal("spark", tmp_path, number)
