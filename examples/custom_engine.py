"""Run the units of a job somewhere else: an engine is one method.

This engine uses threads. One for a cluster looks the same: submit `work` and each unit, which both pickle, and yield
what comes back.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import tarmac
from tarmac.jobs.engines import Finished, Work, make_engine, register_engine
from tarmac.jobs.run import run_job
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.runtime.lookahead import run_ahead


class ThreadEngine:
    """Run up to `jobs` units at a time, in threads."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def run(self, work: Work, units: Iterable[Unit]) -> Iterator[Finished]:
        """Run all units and yield each with its outcome or its error as they finish."""
        with ThreadPoolExecutor(self.jobs) as pool:
            for unit, future in run_ahead(
                lambda unit: pool.submit(work, unit), units, self.jobs, ordered=False
            ):
                yield unit, future.exception() or future.result()  # type: ignore[misc]


register_engine("threads", ThreadEngine)


@dataclass
class CountSamples(Task):
    """A job with one unit per shard."""

    shards: list[str]
    verb: str = "count"

    def plan(self) -> Iterator[Unit]:
        """Yield one unit for each shard."""
        return (Unit(shard) for shard in self.shards)

    def run(self, unit: Unit) -> Outcome:
        """Count the samples of one shard."""
        samples = sum(1 for _ in tarmac.read(unit.name))
        return Outcome(read=samples, written=samples)


if __name__ == "__main__":
    shards = [f"shard-{number}.tar" for number in range(4)]
    for number, shard in enumerate(shards):
        with tarmac.TarWriter(shard) as writer:
            for sample in range(number + 1):
                writer.write({"__key__": f"{number}/{sample}", "txt": "hello"})

    report = run_job(CountSamples(shards), make_engine("threads", jobs=2))
    print(report)
    assert report.read == 10
