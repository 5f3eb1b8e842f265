"""Run one unit: what engines execute on workers."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tarmac.errors import TransferError, UnitTimedOut, UsageError, WorkerDied
from tarmac.jobs.journal import Journal
from tarmac.jobs.outputs import sampled_digests
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.runtime.time_limit import TimeLimitExceeded, time_limit

BACKOFF, MAX_BACKOFF = 0.5, 30.0
"""The first and the longest pause between two attempts, in seconds."""


@dataclass(frozen=True)
class Policy:
    """What happens to units that fail."""

    retries: int = 2
    """How often a unit is run again after an error that may not come again: a lost connection, a dead worker."""
    timeout: float | None = None
    """Seconds after which a unit is interrupted."""
    max_failed_units: int = 0
    """How many units may fail before no more are started."""

    def __post_init__(self) -> None:
        for name in ("retries", "max_failed_units"):
            if getattr(self, name) < 0:
                raise UsageError(f"expected 0 or more, got {getattr(self, name)}.", field=name)
        if self.timeout is not None and self.timeout <= 0:
            raise UsageError(f"expected a positive number, got {self.timeout}.", field="unit_timeout")


DEFAULT_POLICY = Policy()


def may_change(error: Exception) -> bool:
    """Return whether an error may not come again: not one of the data, of the user or of a full disk."""
    return isinstance(error, TransferError | UnitTimedOut | WorkerDied | ConnectionError)


@dataclass(frozen=True)
class UnitWork:
    """Runs units, and records those that are done. It is sent to the workers."""

    task: Task
    journal: Journal | None = None
    policy: Policy = DEFAULT_POLICY

    def __call__(self, unit: Unit) -> Outcome:
        """Run a unit, again after an error that may not come again, and record its outcome."""
        attempt = 0
        while True:
            try:
                outcome = self._run(unit)
                break
            except Exception as error:
                if attempt >= self.policy.retries or not may_change(error):
                    raise
            time.sleep(min(BACKOFF * 2**attempt, MAX_BACKOFF))
            attempt += 1
        if self.journal is not None:
            self.journal.record(unit, outcome)
        self.task.clean_up(unit, outcome)
        return outcome

    def _run(self, unit: Unit) -> Outcome:
        started = time.monotonic()
        try:
            with time_limit(self.policy.timeout):
                outcome = self.task.run(unit)
                self.task.commit(unit, outcome)
        except TimeLimitExceeded:
            what = f"it took more than {self.policy.timeout:g} seconds."
            raise UnitTimedOut(what, url=unit.name, hint="a larger `unit_timeout`.") from None
        outcome.sampled_digests = sampled_digests(outcome.outputs)
        outcome.seconds = time.monotonic() - started
        return outcome
