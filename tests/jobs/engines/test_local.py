"""The local engine: all units come back, however workers, units and parents end."""

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
from tarmac.errors import BadName, UsageError, WorkerDied
from tarmac.jobs.engines.local import LocalEngine
from tarmac.jobs.task import Outcome, Unit
from tarmac.runtime import processes
from tarmac.runtime.processes import worker_pool


@dataclass
class Work:
    """Does what the content of a unit says."""

    def __call__(self, unit):
        what = unit.content
        if what == "bad":
            raise BadName("bad.", key=unit.name)
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome(details={"process": os.getpid(), "what": what})


def units(*contents):
    return [Unit(str(number), content) for number, content in enumerate(contents)]


def test_one_job_runs_in_this_process():
    finished = list(LocalEngine().run(Work(), units("x", "bad", "y")))
    assert [unit.name for unit, _ in finished] == ["0", "1", "2"]
    assert finished[0][1].details["process"] == os.getpid()
    assert isinstance(finished[1][1], BadName)
    with pytest.raises(UsageError) as caught:
        LocalEngine(0)
    assert caught.value.field == "jobs"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_several_processes(method, monkeypatch):
    monkeypatch.setattr(processes, "_context", lambda: multiprocessing.get_context(method))
    finished = dict(LocalEngine(2).run(Work(), units(*range(20), "bad")))
    assert len(finished) == 21
    outcomes = [outcome for outcome in finished.values() if isinstance(outcome, Outcome)]
    assert sorted(outcome.details["what"] for outcome in outcomes) == list(range(20))
    assert os.getpid() not in {outcome.details["process"] for outcome in outcomes}
    (error,) = [outcome for outcome in finished.values() if isinstance(outcome, Exception)]
    assert (type(error), error.key) == (BadName, "20")


def test_look_ahead_is_bounded():
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


def test_a_killed_worker_is_an_error_of_its_units():
    finished = list(LocalEngine(2).run(Work(), units("kill", "x", "y")))
    errors = [outcome for _, outcome in finished if isinstance(outcome, Exception)]
    assert errors
    assert all(isinstance(error, WorkerDied) for error in errors)


SCRIPT = """
import sys, time
from tarmac.jobs.engines.local import LocalEngine
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


def test_submitting_to_a_dead_pool_is_the_same_error():
    def slowly():
        before = len(psutil.Process().children())
        yield from units("kill", "x")
        assert until(lambda: len(psutil.Process().children()) <= before)
        yield from units("y", "z", "a", "b", "c")

    with contextlib.suppress(WorkerDied):
        for _, outcome in LocalEngine(2).run(Work(), slowly()):
            assert isinstance(outcome, WorkerDied | Outcome)


def test_other_processes_of_the_program_are_left_alone():
    """Also those that are started while the pool runs."""
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
