"""Processes of this machine: all units come back, however workers, units and parents end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import psutil
import pytest

from harness.waiting import FOREVER, TIMEOUT, gone, until
from tarmac.errors import BadName, WorkerDied
from tarmac.jobs.engines import local
from tarmac.jobs.engines.local import LocalEngine, worker_pool
from tarmac.jobs.task import Outcome, Unit


@dataclass
class Work:
    """What to do with a unit, by its content."""

    def __call__(self, unit):
        what = unit.content
        if what == "bad":
            raise BadName("bad.", key=unit.name)
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome(facts={"process": os.getpid(), "what": what})


def units(*contents):
    return [Unit(str(number), content) for number, content in enumerate(contents)]


def test_one_process_is_this_one():
    found = list(LocalEngine().run(Work(), units("x", "bad", "y")))
    assert [unit.name for unit, _ in found] == ["0", "1", "2"]
    assert found[0][1].facts["process"] == os.getpid()
    assert isinstance(found[1][1], BadName)
    with pytest.raises(ValueError, match="at least"):
        LocalEngine(0)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_several_processes(method, monkeypatch):
    import multiprocessing

    monkeypatch.setattr(local, "_context", lambda: multiprocessing.get_context(method))
    found = dict(LocalEngine(2).run(Work(), units(*range(20), "bad")))
    assert len(found) == 21
    outcomes = [outcome for outcome in found.values() if isinstance(outcome, Outcome)]
    assert sorted(outcome.facts["what"] for outcome in outcomes) == list(range(20))
    assert os.getpid() not in {outcome.facts["process"] for outcome in outcomes}
    (error,) = [outcome for outcome in found.values() if isinstance(outcome, Exception)]
    assert (type(error), error.key) == (BadName, "20")


def test_units_are_taken_only_as_they_can_be_done():
    taken = []

    def endless():
        for number in range(10**9):
            taken.append(number)
            yield Unit(str(number), number)

    running = LocalEngine(2).run(Work(), endless())
    for _ in range(5):
        next(running)
    assert len(taken) < 20
    running.close()


def test_a_killed_worker_is_an_error_for_each_unit_that_it_took_with_it():
    found = list(LocalEngine(2).run(Work(), units("kill", "x", "y")))
    errors = [outcome for _, outcome in found if isinstance(outcome, Exception)]
    assert errors
    assert all(isinstance(error, WorkerDied) for error in errors)


SCRIPT = """
import sys, time
from tarmac.jobs.engines.local import LocalEngine, worker_pool
from tarmac.jobs.task import Outcome, Unit

def work(unit):
    try:
        open(f"{sys.argv[1]}/{unit.name}", "w").close()
        time.sleep(10_000)
    except KeyboardInterrupt:
        open(f"{sys.argv[1]}/{unit.name}.interrupted", "w").close()
        raise
    return Outcome()

try:
    list(LocalEngine(2).run(work, [Unit(str(n)) for n in range(5)]))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path, number):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    child = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
    assert until(lambda: len(list(tmp_path.iterdir())) == 2)
    workers = psutil.Process(child.pid).children()
    assert len(workers) == 2
    child.send_signal(number)  # the parent alone, as a batch system does it
    errors = child.communicate(timeout=TIMEOUT)[1]
    assert gone(workers)
    if number == signal.SIGINT:
        assert child.returncode == 130
        assert errors == b""
        assert len(list(tmp_path.glob("*.interrupted"))) == 2


def test_more_work_for_processes_that_have_died_is_the_same_error():
    def slowly():
        before = len(psutil.Process().children())
        yield from units("kill", "x")
        assert until(lambda: len(psutil.Process().children()) <= before)
        yield from units("y", "z", "a", "b", "c")

    with contextlib.suppress(WorkerDied):
        for _, outcome in LocalEngine(2).run(Work(), slowly()):
            assert isinstance(outcome, WorkerDied | Outcome)


def test_processes_of_others_are_left_alone():
    """Those that are started while ours work, too."""
    with worker_pool(1, Work()) as submit:
        first = submit(units("x")[0])
        other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER,))
        other.start()
        first.result()
        with pytest.raises(ZeroDivisionError), worker_pool(1, Work()) as again:
            again(units("y")[0]).result()
            raise ZeroDivisionError
        assert isinstance(submit(units("z")[0]).result(), Outcome)
    assert other.is_alive()
    other.kill()
    other.join()
