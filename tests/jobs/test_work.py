"""Units that fail: what is tried again, how often, and when it is too late."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tarmac.errors import BadName, ConnectFailed, DiskFull, UnitsFailed, UnitTimedOut, UsageError, WorkerDied
from tarmac.jobs import work as work_module
from tarmac.jobs.engines.local import LocalEngine
from tarmac.jobs.run import run_job
from tarmac.jobs.share import Share
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.jobs.work import Policy, UnitWork


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(work_module, "BACKOFF", 0.0)


@dataclass
class Unreliable(Task):
    """Each unit raises the errors that are left for it, and then succeeds."""

    errors: dict[str, list[BaseException]] = field(default_factory=dict)
    names: tuple[str, ...] = ("a", "b", "c")
    in_commit: bool = False
    runs: list[str] = field(default_factory=list)
    finished: int = 0
    verb: str = "try"

    def plan(self):
        return map(Unit, self.names)

    def run(self, unit):
        self.runs.append(unit.name)
        if not self.in_commit:
            self._fail(unit)
        return Outcome(1, 1)

    def commit(self, unit, outcome):
        if self.in_commit:
            self._fail(unit)

    def _fail(self, unit):
        if self.errors.get(unit.name):
            raise self.errors[unit.name].pop(0)

    def finish(self, outcomes):
        self.finished += 1


LOST = ConnectFailed("lost.", url="s3://b/x.tar")


@pytest.mark.parametrize("in_commit", [False, True])
@pytest.mark.parametrize(
    "error", [LOST, ConnectionResetError("reset"), WorkerDied("it died."), UnitTimedOut("late.")]
)
def test_errors_that_may_pass_are_tried_again(error, in_commit):
    task = Unreliable({"b": [error, error]}, in_commit=in_commit)
    report = run_job(task, LocalEngine(), policy=Policy(retries=2))
    assert (report.done, task.runs, task.finished) == (3, ["a", "b", "b", "b", "c"], 1)


@pytest.mark.parametrize(
    "error", [BadName("bad."), DiskFull("full."), UsageError("wrong."), ValueError("mine")]
)
def test_errors_of_the_user_and_the_data_are_not(error):
    task = Unreliable({"b": [error]})
    with pytest.raises(type(error)):
        run_job(task, LocalEngine(), policy=Policy(retries=5))
    assert (task.runs, task.finished) == (["a", "b"], 0)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_retries_are_limited(retries):
    task = Unreliable({"a": [LOST] * 10})
    with pytest.raises(ConnectFailed):
        run_job(task, LocalEngine(), policy=Policy(retries=retries))
    assert task.runs == ["a"] * (retries + 1)


@pytest.mark.parametrize("allowed", [0, 1, 2, 5])
def test_more_failed_units_than_allowed_stop_the_job(allowed):
    names = tuple("abcdef")
    task = Unreliable({name: [BadName(f"bad {name}.")] for name in "acd"}, names)
    with pytest.raises(UnitsFailed if allowed else BadName, match="bad a"):
        run_job(task, LocalEngine(), policy=Policy(max_failed_units=allowed))
    stopped_at = {0: 1, 1: 3, 2: 4}.get(allowed, len(names))
    assert (task.runs, task.finished) == (list(names[:stopped_at]), 0)


def test_failed_units_and_their_errors_are_recorded(tmp_path):
    task = Unreliable({"a": [BadName("bad.", key="k")]})
    with pytest.raises(BadName):
        run_job(task, LocalEngine(), ledger=str(tmp_path / "l.job"), policy=Policy(max_failed_units=1))
    report = run_job(task, LocalEngine(), ledger=str(tmp_path / "l.job"))
    assert (report.done, report.kept, task.runs, task.finished) == (1, 2, ["a", "b", "c", "a"], 1)


def test_tasks_try_a_unit_again_that_had_no_space(tmp_path):
    """Its hint says so: free space and run again."""
    task, ledger = (
        Unreliable({"a": [DiskFull("full.", url="a")], "b": [BadName("bad.")]}),
        str(tmp_path / "l.job"),
    )
    with pytest.raises(UnitsFailed, match=r"a: full\..*jobs retry"):
        run_job(task, LocalEngine(), ledger=ledger, share=Share(0, 1), policy=Policy(max_failed_units=9))
    with pytest.raises(UnitsFailed, match=r"1 of 3 units failed.*b: bad\."):
        run_job(task, LocalEngine(), ledger=ledger, share=Share(0, 1))
    assert task.runs == ["a", "b", "c", "a"]


@dataclass
class Forever(Task):
    """Waits for a line that is never written."""

    verb: str = "wait"
    attempts: list[str] = field(default_factory=list)

    def plan(self):
        return [Unit("a")]

    def run(self, unit):
        self.attempts.append(unit.name)
        if threading.current_thread() is threading.main_thread():
            reader, writer = os.pipe()
            try:
                os.read(reader, 1)
            finally:
                os.close(reader)
                os.close(writer)
        while True:  # the exception reaches a thread between two instructions
            pass


def test_a_unit_that_takes_too_long_is_interrupted():
    task = Forever()
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(UnitTimedOut, match=r"^a: .*0\.05 seconds"):
        run_job(task, LocalEngine(), policy=Policy(retries=1, timeout=0.05))
    assert task.attempts == ["a", "a"]
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_unit_in_another_thread_is_interrupted_too():
    work = UnitWork(Forever(), policy=Policy(retries=0, timeout=0.05))
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(UnitTimedOut):
            pool.submit(work, Unit("a")).result()
        assert pool.submit(lambda: "still works").result() == "still works"


def test_a_unit_in_time_is_not_interrupted():
    report = run_job(Unreliable(), LocalEngine(), policy=Policy(timeout=60))
    assert report.done == 3


@dataclass
class Deadly(Task):
    """Kills the process of the unit `b` a number of times."""

    folder: Path
    deaths: int
    verb: str = "die"

    def plan(self):
        return map(Unit, "abcd")

    def run(self, unit):
        attempts = len(list(self.folder.glob(f"{unit.name}-*")))
        (self.folder / f"{unit.name}-{attempts}").touch()
        if unit.name == "b" and attempts < self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        return Outcome(1, 1)


@pytest.mark.processes
@pytest.mark.parametrize(("deaths", "retries"), [(1, 2), (2, 2), (2, 1), (1, 0)])
def test_units_of_dead_workers_are_tried_again(tmp_path, deaths, retries):
    task = Deadly(tmp_path, deaths)
    ledger = str(tmp_path / "l.job")
    if deaths <= retries:
        assert run_job(task, LocalEngine(2), ledger=ledger, policy=Policy(retries=retries)).done == 4
    else:
        with pytest.raises((WorkerDied, UnitsFailed)):
            run_job(task, LocalEngine(2), ledger=ledger, policy=Policy(retries=retries, max_failed_units=9))
        assert len(list(tmp_path.glob("b-*"))) == retries + 1
        assert run_job(task, LocalEngine(2), ledger=ledger).units == 4


def _die_once(unit):
    path = Path(unit.content)
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return Outcome(details={"pid": os.getpid()})


@pytest.mark.processes
def test_a_unit_that_ended_its_worker_does_not_run_in_this_process(tmp_path):
    """One that is left alone would, as there is nothing to do at the same time."""
    engine, units = LocalEngine(2), [Unit(name, str(tmp_path / name)) for name in "ab"]
    assert any(isinstance(result, WorkerDied) for _, result in _until_death(engine, units))
    Path(units[0].content).touch()
    ((_, outcome),) = engine.run(_die_once, units[:1])
    assert outcome.details["pid"] != os.getpid()


def _until_death(engine, units):
    try:
        yield from engine.run(_die_once, units)
    except WorkerDied as error:
        yield units[0], error


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("retries", {"retries": -1}),
        ("max_failed_units", {"max_failed_units": -1}),
        ("unit_timeout", {"timeout": 0}),
    ],
)
def test_invalid_policies(field, values):
    with pytest.raises(UsageError) as raised:
        Policy(**values)
    assert raised.value.field == field


class Counted(LocalEngine):
    """Counts how often it was started."""

    starts = 0

    def run(self, work, units):
        self.starts += 1
        return super().run(work, units)


def test_an_engine_with_nothing_to_do_is_not_started(tmp_path):
    """Clusters take seconds to start."""
    task, engine, ledger = Unreliable(), Counted(), str(tmp_path / "l.job")
    run_job(task, engine, ledger=ledger)
    assert engine.starts == 1
    assert run_job(task, engine, ledger=ledger).kept == 3
    assert engine.starts == 1


@pytest.mark.processes
def test_a_unit_that_kills_its_workers_is_named(tmp_path):
    with pytest.raises(WorkerDied, match=r"^b: "):
        run_job(Deadly(tmp_path, 9), LocalEngine(2), policy=Policy(retries=1))
