"""Tasks without a driver: whatever number of them runs, in whatever order, and whichever are killed."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tarmac
from tarmac.errors import BadName, UnitsFailed, UsageError
from tarmac.jobs.engines.local import LocalEngine
from tarmac.jobs.leases import Leases
from tarmac.jobs.run import run_job
from tarmac.jobs.share import Share
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.jobs.work import Policy
from tarmac.tools.jobs import retry
from tools.shards import make


@dataclass
class Touch(Task):
    """Writes a file for each unit, and notes which units were run and how often the job was finished."""

    folder: Path
    units: int = 6
    bad: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    runs: list[str] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    verb: str = "touch"

    def plan(self):
        return [Unit(f"u{number}") for number in range(self.units)]

    def run(self, unit):
        self.runs.append(unit.name)
        if unit.name in self.bad:
            raise BadName("bad.", key=unit.name)
        path = self.folder / unit.name
        path.write_text(unit.name)
        outcome = Outcome(1, 1, outputs={str(path): len(unit.name)})
        if unit.name in self.failing:
            outcome.fail("a sample")
        return outcome

    def finish(self, outcomes):
        self.finished.append(len(outcomes))


class KilledError(BaseException):
    """Ends a task where a signal would."""


class Steps:
    """An engine in this process that does something else before each unit."""

    def __init__(self, before=lambda number: None):
        self.before = before

    def run(self, work, units):
        for number, unit in enumerate(units):
            self.before(number)
            try:
                yield unit, work(unit)
            except Exception as error:
                yield unit, error


def run(task, share, engine=None, **options):
    ledger = str(task.folder / "touch.job")
    return run_job(task, engine or Steps(), ledger=ledger, share=share, **options)


def killed_after(count):
    def before(number):
        if number >= count:
            raise KilledError

    return Steps(before)


@st.composite
def shares(draw):
    count = draw(st.integers(1, 5))
    return Share(draw(st.integers(0, count - 1)), count)


LIVES = st.lists(st.tuples(shares(), st.none() | st.integers(0, 4)), max_size=6)
"""Tasks, one after the other, and after how many units each is killed."""


@given(st.integers(0, 9), LIVES, shares())
def test_every_unit_is_done_once_whatever_tasks_there_were(tmp_path_factory, units, lives, last):
    task = Touch(tmp_path_factory.mktemp("t"), units)
    for share, lived in lives:
        with contextlib.suppress(KilledError):
            run(task, share, None if lived is None else killed_after(lived))
    report = run(task, last)
    assert sorted(task.runs) == sorted(f"u{number}" for number in range(units))
    assert (report.units, report.done + report.kept) == (units, units)
    assert set(task.finished) == {units}
    shutil.rmtree(task.folder)


STARTS = st.lists(
    st.tuples(st.integers(0, 4), shares()), min_size=1, max_size=5, unique_by=lambda each: each[1]
)


@given(st.integers(0, 9), STARTS)
def test_tasks_at_the_same_time_do_not_do_the_same_unit(tmp_path_factory, units, starts):
    """Each task starts while the one before it is in its unit of this number. One share is that of one task."""
    task, ((_, first), *others) = Touch(tmp_path_factory.mktemp("t"), units), starts

    def engine(later):
        def before(number):
            if later and number == later[0][0]:
                run(task, later[0][1], engine(later[1:]))

        return Steps(before)

    run(task, first, engine(others))
    assert sorted(task.runs) == sorted(f"u{number}" for number in range(units))
    assert set(task.finished) == {units}
    shutil.rmtree(task.folder)


def test_tasks_leave_units_to_those_that_hold_them(tmp_path):
    task, reports = Touch(tmp_path), []

    def other(number):
        if number == 0:
            reports.append(run(task, Share(1, 2)))

    run(task, Share(0, 2), Steps(other))
    assert task.runs == ["u1", "u3", "u5", "u4", "u2", "u0"]
    assert (reports[0].done, task.finished) == (5, [6])
    assert reports[0].remarks == ["1 of 6 units are in progress in other tasks"]


def test_other_tasks_do_not_try_a_failed_unit_until_it_is_retried(tmp_path):
    task = Touch(tmp_path, bad={"u2", "u4"})
    with pytest.raises(UnitsFailed, match="2 of"):
        run(task, Share(0, 2), policy=Policy(max_failed_units=5))
    assert sorted(task.runs) == ["u0", "u1", "u2", "u3", "u4", "u5"]
    with pytest.raises(UnitsFailed, match="2 of 6"):
        run(task, Share(1, 2))
    assert (len(task.runs), task.finished) == (6, [])

    task.bad = set()
    assert retry(tmp_path / "touch.job", ["u4"]) == ["u4"]
    with pytest.raises(UnitsFailed, match="1 of 6"):
        run(task, Share(1, 2))
    assert task.runs[6:] == ["u4"]
    assert retry(tmp_path / "touch.job") == ["u2"]
    assert retry(tmp_path / "touch.job") == []
    run(task, Share(0, 3))
    assert (task.runs[6:], task.finished) == (["u4", "u2"], [6])


def test_a_run_with_a_driver_tries_failed_units_again(tmp_path):
    task = Touch(tmp_path, bad={"u2"})
    with pytest.raises(BadName):
        run(task, Share(0, 1))
    task.bad = set()
    assert run(task, None).done == 4
    assert task.finished == [6]


def test_a_task_does_units_again_whose_output_is_gone(tmp_path):
    task = Touch(tmp_path)
    run(task, Share(0, 1))
    (tmp_path / "u3").unlink()
    report = run(task, Share(1, 2))
    assert (report.done, task.runs[6:], (tmp_path / "u3").read_text()) == (1, ["u3"], "u3")


def test_tasks_retry_units_with_failed_samples_once(tmp_path):
    task = Touch(tmp_path, failing={"u1", "u4"})
    run(task, Share(0, 1))
    task.failing = set()

    def other(number):
        if number == 0:
            run(task, Share(0, 2), retry_failed=True)

    run(task, Share(1, 2), Steps(other), retry_failed=True)
    assert sorted(task.runs[6:]) == ["u1", "u4"]
    assert run(task, Share(0, 1)).failed == 0


def test_a_task_that_starts_again_takes_its_own_units_at_once(tmp_path):
    task = Touch(tmp_path)
    with contextlib.suppress(KilledError):
        run(task, Share(0, 2), killed_after(1))
    (generation,) = (path for path in (tmp_path / "touch.job").iterdir() if path.is_dir())
    stuck = Leases(str(generation), "0/2")  # of this process, which lives
    stuck.take("u2")
    assert run(task, Share(1, 2)).done == 4
    assert run(task, Share(0, 2)).done == 1
    stuck.close()


def test_starting_over_is_for_one_process(tmp_path):
    with pytest.raises(UsageError, match="overwrite"):
        run(Touch(tmp_path), Share(0, 2), overwrite=True)


def test_tasks_need_a_ledger(tmp_path):
    with pytest.raises(UsageError, match="`task`"):
        run_job(Touch(tmp_path), Steps(), share=Share(0, 2))


def test_tasks_have_no_engine(tmp_path):
    make(tmp_path, 2)
    with pytest.raises(UsageError, match="`task`"):
        tarmac.copy(str(tmp_path / "in-0.tar"), str(tmp_path / "out/"), task="0/2", engine=LocalEngine())
    with pytest.raises(UsageError, match="`task`"):
        tarmac.copy(str(tmp_path / "in-0.tar"), str(tmp_path / "out/"), task="2/2")
