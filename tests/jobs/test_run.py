"""Running jobs: once, again, after changes, with failures."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tarmac.errors import BadName, ErrorBudgetExceeded, JobMismatch, UrlError
from tarmac.jobs.engines.local import LocalEngine
from tarmac.jobs.run import run_job
from tarmac.jobs.task import Outcome, Task, Unit


@dataclass
class Writing(Task):
    """Writes a file for each unit."""

    folder: Path
    names: tuple[str, ...] = ("a", "b", "c")
    bad: tuple[str, ...] = ()
    made_from: str = ""
    seen: str = ""
    size: int = 1
    lost: int = 0
    verb: str = "writing"
    finished: list = field(default_factory=list)

    def options(self):
        return {"size": self.size}

    def begin(self, units):
        for unit in units:
            if (self.folder / unit.name).exists():
                raise UrlError(f"{unit.name} is in the way")

    def plan(self):
        return [Unit(name, name.upper(), self.made_from) for name in self.names]

    def run(self, unit):
        if unit.name in self.bad:
            raise BadName("this one is bad.", key=unit.name)
        path = self.folder / unit.name
        path.write_text(unit.content * self.size)
        outcome = Outcome(10, 10 - self.lost, bytes=3, outputs={str(path): self.size})
        for number in range(self.lost):
            outcome.fail(f"{unit.name} {number}")
        return outcome

    def commit(self, unit, outcome):
        outcome.facts["committed"] = True

    def finish(self, outcomes):
        self.finished.append([next(iter(outcome.outputs))[-1] for outcome in outcomes])


ENGINE = LocalEngine()


def run(task, engine=ENGINE, **more):
    return run_job(task, engine, ledger=str(task.folder / "ledger.jsonl"), **more)


def test_all_of_it_then_nothing_then_what_is_missing(tmp_path):
    task = Writing(tmp_path)
    report = run(task)
    assert (report.units, report.done, report.kept) == (3, 3, 0)
    assert (report.read, report.written, report.bytes, report.ok) == (30, 30, 9, True)
    assert all(outcome.facts["committed"] for outcome in report.outcomes)
    assert str(report) == "writing: 30 samples in, 30 out, 9 bytes"

    report = run(task)
    assert (report.done, report.kept, report.written) == (0, 3, 30)
    assert "nothing to do" in str(report)

    (tmp_path / "b").unlink()
    (tmp_path / "c").write_text("longer than it was")
    report = run(task)
    assert (report.done, report.kept) == (2, 1)
    assert "1 of 3 were done before" in str(report)
    assert (tmp_path / "c").read_text() == "C"
    assert task.finished == [["a", "b", "c"]] * 3

    (tmp_path / "a").write_text("?")  # of somebody else, and of the same size
    assert run(task).done == 1
    assert (tmp_path / "a").read_text() == "A"


def test_a_dry_run_says_what_is_missing_and_touches_nothing(tmp_path):
    def look(**more):
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        try:
            report = run(Writing(tmp_path, **more.pop("task", {})), dry=True, **more)
        finally:
            assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
        return report.units, report.done, report.kept

    assert look() == (3, 0, 0)
    run(Writing(tmp_path))
    assert look() == (3, 0, 3)
    (tmp_path / "b").unlink()
    assert look() == (3, 0, 2)
    assert look(anew=True) == (3, 0, 0)
    with pytest.raises(JobMismatch, match="size 1 -> 2"):
        look(task={"size": 2})
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(UrlError, match="a is in the way"):
        look()


def test_the_first_error_ends_it_and_what_was_done_is_remembered(tmp_path):
    with pytest.raises(BadName, match="this one is bad"):
        run(Writing(tmp_path, bad=("b",)))
    assert not (tmp_path / "c").exists()
    report = run(Writing(tmp_path))
    assert (report.done, report.kept) == (2, 1)


def test_changed_inputs_are_refused(tmp_path):
    run(Writing(tmp_path, made_from="1"))
    with pytest.raises(JobMismatch, match="what a is made from has changed"):
        run(Writing(tmp_path, made_from="2"))
    assert run(Writing(tmp_path, made_from="2"), anew=True).done == 3


def test_inputs_that_are_seen_only_when_they_are_read(tmp_path):
    class Reading(Writing):
        def run(self, unit):
            outcome = super().run(unit)
            outcome.inputs = f"{unit.name} as it was {self.seen}"
            return outcome

        def inputs(self, unit):
            asked.append(unit.name)
            return f"{unit.name} as it was {self.seen}"

    asked = []
    run(Reading(tmp_path, seen="first"))
    assert asked == []  # only what was done before is looked at again
    assert run(Reading(tmp_path, seen="first")).kept == 3
    assert asked == ["a", "b", "c"]
    with pytest.raises(JobMismatch, match="what a is made from has changed"):
        run(Reading(tmp_path, seen="later"))


def test_changed_options_are_refused(tmp_path):
    run(Writing(tmp_path))
    with pytest.raises(JobMismatch, match="size 1 -> 2"):
        run(Writing(tmp_path, size=2))


def test_what_is_in_the_way_is_found_before_anything_is_done(tmp_path):
    (tmp_path / "c").write_text("mine")
    for _ in range(2):  # and again: the job was not begun
        with pytest.raises(UrlError, match="in the way"):
            run(Writing(tmp_path))
    assert not (tmp_path / "a").exists()
    run(Writing(tmp_path), anew=True)
    assert (tmp_path / "c").read_text() == "C"


def test_lost_samples_are_reported_and_limited(tmp_path):
    report = run(Writing(tmp_path, lost=2))
    assert (report.failed, report.ok, len(report.errors)) == (6, False, 6)
    assert "6 FAILED" in str(report)
    assert report.facts()["failed"] == 6
    with pytest.raises(ErrorBudgetExceeded, match="4 samples failed, 3 may"):
        run(Writing(tmp_path, lost=2), most_failed=3, anew=True)


def test_units_of_one_name_are_a_mistake(tmp_path):
    with pytest.raises(ValueError, match="two units"):
        run(Writing(tmp_path, names=("a", "a")))


def test_what_a_later_step_removed_counts_as_done(tmp_path):
    class Removing(Writing):
        def commit(self, unit, outcome):
            (self.folder / unit.name).unlink()
            outcome.facts["removed"] = True

    run(Removing(tmp_path))
    assert run(Removing(tmp_path)).kept == 3


class Elsewhere:
    """An engine whose units and outcomes travel as bytes, and end in any order."""

    def run(self, work, units):
        sent = [pickle.dumps((work, unit)) for unit in units]
        for message in reversed(sent):
            there, unit = pickle.loads(message)
            try:
                outcome = pickle.loads(pickle.dumps(there(unit)))
            except Exception as error:
                outcome = pickle.loads(pickle.dumps(error))
            yield unit, outcome


def test_another_engine_is_one_method(tmp_path):
    with pytest.raises(BadName, match="this one is bad"):
        run(Writing(tmp_path, bad=("b",)), Elsewhere())
    report = run(Writing(tmp_path), Elsewhere())
    assert (report.units, report.done, report.kept) == (3, 1, 2)
    assert [next(iter(outcome.outputs))[-1] for outcome in report.outcomes] == ["a", "b", "c"]
