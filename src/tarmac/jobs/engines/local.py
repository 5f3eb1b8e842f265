"""Run units in processes of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from tarmac.errors import UsageError, WorkerDied
from tarmac.jobs.engines import Finished, Work
from tarmac.jobs.task import Outcome, Unit
from tarmac.runtime.device import assign_device, devices, using_device
from tarmac.runtime.lookahead import run_ahead
from tarmac.runtime.processes import result_of, worker_pool


class LocalEngine:
    """Run units in worker processes of this machine, or in this process if `jobs` is 1."""

    local = True
    """Workers have all files of this process."""

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise UsageError(f"expected 1 or more, got {jobs}.", field="jobs")
        self.jobs = jobs
        self.device: str | None = None
        self._worker_died = False
        """Whether a unit has ended its process; it must not end this one when it is run again."""

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Finished]:
        """Run all units and yield each with its result as they finish."""
        rest = iter(units)
        first = list(islice(rest, min(self.jobs, 2)))
        if len(first) < 2 and not self._worker_died:
            for unit in chain(first, rest):
                with using_device(assign_device(self.device, 0)):
                    result_here = _run_here(work, unit)
                yield unit, result_here
            return
        try:
            with worker_pool(self.jobs, work, devices(self.device), saves=True) as submit:
                for unit, future in run_ahead(submit, chain(first, rest), self.jobs, ordered=False):
                    result: Outcome | Exception = result_of(future)
                    self._worker_died = self._worker_died or isinstance(result, WorkerDied)
                    yield unit, result
        except WorkerDied:  # no more units can be submitted
            self._worker_died = True
            raise


def _run_here(work: Work, unit: Unit) -> Outcome | Exception:
    try:
        return work(unit)
    except Exception as error:
        return error
