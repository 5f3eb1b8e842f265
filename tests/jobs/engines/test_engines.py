"""Engines by name: the built-in one, custom ones, and invalid names."""

from __future__ import annotations

import pytest

from tarmac.errors import UsageError
from tarmac.jobs import engines
from tarmac.jobs.engines import Engine, make_engine, register_engine
from tarmac.jobs.engines.local import LocalEngine


class Custom:
    def __init__(self, jobs):
        self.jobs = jobs

    def run(self, work, units):
        for unit in units:
            yield unit, work(unit)


def test_local_is_the_default():
    assert (make_engine().jobs, make_engine("local", 3).jobs, make_engine(None, 2).jobs) == (1, 3, 2)
    assert isinstance(make_engine(), LocalEngine)
    assert isinstance(make_engine(), Engine)


def test_custom_engines(monkeypatch):
    monkeypatch.setattr(engines, "_factories", dict(engines._factories))
    register_engine("custom", Custom)
    assert (type(make_engine("custom", 5)), make_engine("custom", 5).jobs) == (Custom, 5)
    engine = Custom(1)
    assert make_engine(engine, 5) is engine


def test_invalid_arguments():
    for name in ("flink", "flink://host:1", "local://host:1"):
        with pytest.raises(UsageError) as caught:
            make_engine(name)
        assert caught.value.field == "engine"
    with pytest.raises(UsageError, match="dask, local, ray, slurm, spark"):
        make_engine("flink")
    with pytest.raises(UsageError) as caught:
        make_engine(None, 0)
    assert caught.value.field == "jobs"
