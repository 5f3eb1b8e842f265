"""Running jobs: a first run, a second run, changed inputs, failures, and other engines."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tarmac.errors import BadName, ErrorBudgetExceeded, JobMismatch, UnitsFailed, UsageError, WriteError
from tarmac.jobs.engines.local import LocalEngine
from tarmac.jobs.run import run_job
from tarmac.jobs.task import MAX_REASONS, Outcome, Task, Unit


@dataclass
class WriteFiles(Task):
    """Writes a file for each unit."""

    folder: Path
    names: tuple[str, ...] = ("a", "b", "c")
    bad: tuple[str, ...] = ()
    version: str = ""
    size: int = 1
    failing: int = 0
    verb: str = "write"
    finished: list = field(default_factory=list)

    def options(self):
        return {"size": self.size}

    def begin(self, units):
        for unit in units:
            if (self.folder / unit.name).exists():
                raise UsageError("the file exists.", url=unit.name)

    def plan(self):
        return [Unit(name, name.upper(), self.version) for name in self.names]

    def run(self, unit):
        if unit.name in self.bad:
            raise BadName("bad.", key=unit.name)
        path = self.folder / unit.name
        path.write_text(unit.content * self.size)
        outcome = Outcome(10, 10 - self.failing, bytes=3, outputs={str(path): self.size})
        for number in range(self.failing):
            outcome.fail(f"{unit.name} {number}")
        return outcome

    def commit(self, unit, outcome):
        outcome.details["committed"] = True

    def finish(self, outcomes):
        self.finished.append([next(iter(outcome.outputs))[-1] for outcome in outcomes])


ENGINE = LocalEngine()


def contents(folder):
    """Return the content of all files in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(task, engine=ENGINE, **options):
    return run_job(task, engine, ledger=str(task.folder / "ledger.job"), **options)


def test_a_second_run_does_only_what_is_missing_or_changed(tmp_path):
    task = WriteFiles(tmp_path)
    report = run(task)
    assert (report.units, report.done, report.kept) == (3, 3, 0)
    assert (report.read, report.written, report.bytes, report.ok) == (30, 30, 9, True)
    assert report.outputs == [str(tmp_path / name) for name in "abc"]
    assert all(outcome.details["committed"] for outcome in report.outcomes)

    report = run(task)
    assert (report.done, report.kept, report.written) == (0, 3, 30)
    assert report.outputs == [str(tmp_path / name) for name in "abc"]

    (tmp_path / "b").unlink()
    (tmp_path / "c").write_text("longer")
    report = run(task)
    assert (report.done, report.kept) == (2, 1)
    assert (tmp_path / "c").read_text() == "C"
    assert task.finished == [["a", "b", "c"]] * 3

    (tmp_path / "a").write_text("?")  # of the same size
    assert run(task).done == 1
    assert (tmp_path / "a").read_text() == "A"


def test_a_dry_run_reports_and_writes_nothing(tmp_path):
    def dry_run(**options):
        before = contents(tmp_path)
        try:
            report = run(WriteFiles(tmp_path, **options.pop("task", {})), dry_run=True, **options)
        finally:
            assert contents(tmp_path) == before
        return report.units, report.done, report.kept

    assert dry_run() == (3, 0, 0)
    run(WriteFiles(tmp_path))
    assert dry_run() == (3, 0, 3)
    (tmp_path / "b").unlink()
    assert dry_run() == (3, 0, 2)
    assert dry_run(overwrite=True) == (3, 0, 0)
    with pytest.raises(JobMismatch, match="size 1 -> 2"):
        dry_run(task={"size": 2})
    shutil.rmtree(tmp_path / "ledger.job")
    with pytest.raises(UsageError, match=r"^a: "):
        dry_run()


def test_the_first_error_stops_the_job_and_completed_units_are_kept(tmp_path):
    with pytest.raises(BadName, match='"b"'):
        run(WriteFiles(tmp_path, bad=("b",)))
    assert not (tmp_path / "c").exists()
    report = run(WriteFiles(tmp_path))
    assert (report.done, report.kept) == (2, 1)


def test_changed_inputs_are_rejected(tmp_path):
    run(WriteFiles(tmp_path, version="1"))
    with pytest.raises(JobMismatch, match=r"ledger\.job: .*inputs .*\ba\b"):
        run(WriteFiles(tmp_path, version="2"))
    assert run(WriteFiles(tmp_path, version="2"), overwrite=True).done == 3


def test_inputs_may_be_known_only_after_reading(tmp_path):
    class Reading(WriteFiles):
        def run(self, unit):
            outcome = super().run(unit)
            outcome.inputs = f"{unit.name} {self.failing}"
            return outcome

        def inputs(self, unit):
            asked.append(unit.name)
            return f"{unit.name} {self.failing}"

    asked = []
    run(Reading(tmp_path))
    assert asked == []  # only the inputs of recorded units are compared
    assert run(Reading(tmp_path)).kept == 3
    assert asked == ["a", "b", "c"]
    with pytest.raises(JobMismatch, match=r"ledger\.job: .*inputs .*\ba\b"):
        run(Reading(tmp_path, failing=1))


def test_existing_files_are_rejected_before_anything_is_written(tmp_path):
    (tmp_path / "c").write_text("mine")
    for _ in range(2):  # the rejected job counts as never started
        with pytest.raises(UsageError, match=r"^c: "):
            run(WriteFiles(tmp_path))
    assert not (tmp_path / "a").exists()
    run(WriteFiles(tmp_path), overwrite=True)
    assert (tmp_path / "c").read_text() == "C"


def test_failed_samples_are_counted_and_limited(tmp_path):
    report = run(WriteFiles(tmp_path, failing=2), max_errors=6)
    assert (report.failed, report.ok, len(report.errors)) == (6, False, 6)
    with pytest.raises(ErrorBudgetExceeded, match=r"^4 .*`max_errors`=3.*: b 1$"):
        run(WriteFiles(tmp_path, failing=2), max_errors=3, overwrite=True)


def test_of_many_errors_the_first_are_kept():
    outcome = Outcome()
    for number in range(MAX_REASONS + 5):
        outcome.fail(f"number {number}")
    assert outcome.failed == MAX_REASONS + 5
    assert outcome.errors == [f"number {number}" for number in range(MAX_REASONS)]


def test_two_units_of_one_name_are_rejected(tmp_path):
    with pytest.raises(UsageError, match=r"^a: "):
        run(WriteFiles(tmp_path, names=("a", "a")))


def test_outputs_that_were_removed_on_purpose_count_as_done(tmp_path):
    class Removing(WriteFiles):
        def commit(self, unit, outcome):
            (self.folder / unit.name).unlink()
            outcome.removed = True

    run(Removing(tmp_path))
    assert run(Removing(tmp_path)).kept == 3


def test_a_missing_companion_is_written_again(tmp_path):
    class WithIndex(WriteFiles):
        def commit(self, unit, outcome):
            (self.folder / f"{unit.name}.idx").write_text("index")
            outcome.companions[str(self.folder / f"{unit.name}.idx")] = 5

    run(WithIndex(tmp_path))
    (tmp_path / "b.idx").unlink()
    report = run(WithIndex(tmp_path))
    assert (report.done, report.kept) == (1, 2)


def test_outputs_that_an_overwriting_job_does_not_write_are_removed(tmp_path):
    run(WriteFiles(tmp_path))
    (tmp_path / "c").write_text("changed since")
    (tmp_path / "d").write_text("of someone else")
    report = run(WriteFiles(tmp_path, names=("a",)), overwrite=True)
    assert report.removed_outputs == [str(tmp_path / "b")]
    assert report.stale_outputs == [str(tmp_path / "c")]
    assert [name for name in "abcd" if (tmp_path / name).exists()] == ["a", "c", "d"]


def test_a_failed_overwriting_job_removes_nothing(tmp_path):
    class Failing(WriteFiles):
        def finish(self, outcomes):
            raise WriteError("no")

    run(WriteFiles(tmp_path))
    with pytest.raises(WriteError):
        run(Failing(tmp_path, names=("a",)), overwrite=True)
    assert (tmp_path / "b").exists()


class PicklingEngine:
    """An engine whose work, units and outcomes are sent as bytes, and which finishes in reverse order."""

    def run(self, work, units):
        sent = [pickle.dumps((work, unit)) for unit in units]
        for message in reversed(sent):
            remote_work, unit = pickle.loads(message)
            try:
                outcome = pickle.loads(pickle.dumps(remote_work(unit)))
            except Exception as error:
                outcome = pickle.loads(pickle.dumps(error))
            yield unit, outcome


def test_a_custom_engine_is_one_method(tmp_path):
    with pytest.raises(BadName, match='"b"'):
        run(WriteFiles(tmp_path, bad=("b",)), PicklingEngine())
    report = run(WriteFiles(tmp_path), PicklingEngine())
    assert (report.units, report.done, report.kept) == (3, 1, 2)
    assert [next(iter(outcome.outputs))[-1] for outcome in report.outcomes] == ["a", "b", "c"]


class LosingEngine:
    """An engine that never returns its second unit."""

    def run(self, work, units):
        for number, unit in enumerate(units):
            if number != 1:
                yield unit, work(unit)


def test_a_unit_that_an_engine_loses_is_an_error(tmp_path):
    with pytest.raises(UnitsFailed, match="1 of 3"):
        run(WriteFiles(tmp_path), LosingEngine())
    report = run(WriteFiles(tmp_path))
    assert (report.done, report.kept) == (1, 2)
