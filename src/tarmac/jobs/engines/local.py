"""Run units in processes of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from tarmac.errors import UsageError
from tarmac.jobs.engines import Finished, Work
from tarmac.jobs.task import Outcome, Unit
from tarmac.runtime.lookahead import run_ahead
from tarmac.runtime.processes import result_of, worker_pool


class LocalEngine:
    """Run units in worker processes of this machine, or in this process if `jobs` is 1."""

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise UsageError(f"expected 1 or more, got {jobs}.", field="jobs")
        self.jobs = jobs

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Finished]:
        """Run all units and yield each with its result as they finish."""
        rest = iter(units)
        first = list(islice(rest, min(self.jobs, 2)))
        if len(first) < 2:
            for unit in chain(first, rest):
                yield unit, _run_here(work, unit)
            return
        with worker_pool(self.jobs, work) as submit:
            for unit, future in run_ahead(submit, chain(first, rest), self.jobs, ordered=False):
                result: Outcome | Exception = result_of(future)
                yield unit, result


def _run_here(work: Work, unit: Unit) -> Outcome | Exception:
    try:
        return work(unit)
    except Exception as error:
        return error
