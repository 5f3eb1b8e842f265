"""The words of the contract: what an outcome counts, and what a task may leave out."""

from __future__ import annotations

import pickle

import pytest

from tarmac.jobs.task import MOST_REASONS, Outcome, Task, Unit


class Smallest(Task):
    verb = "nothing"

    def plan(self):
        return [Unit("a")]

    def run(self, unit):
        return Outcome(1, 1)


def test_a_task_needs_a_plan_and_a_way_to_run():
    with pytest.raises(TypeError, match="abstract"):
        Task()
    task = pickle.loads(pickle.dumps(Smallest()))
    assert task.options() == {}
    task.begin(task.plan())
    task.commit(Unit("a"), Outcome())
    task.finish([])


def test_lost_samples_are_all_counted_and_the_first_reasons_kept():
    outcome = Outcome()
    for number in range(MOST_REASONS + 5):
        outcome.fail(f"number {number}")
    assert outcome.failed == MOST_REASONS + 5
    assert outcome.errors == [f"number {number}" for number in range(MOST_REASONS)]
