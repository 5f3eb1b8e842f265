"""Make shards from samples: the job under copy, sort, map and join, and the same for one stream."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tarmac.jobs.ledger import ledger_place
from tarmac.jobs.run import Engine, JobReport, run_job
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.samples.grouping import Sample
from tarmac.tools.arrange import Arrangement
from tarmac.tools.output import Output, fields_of, several_shards, write_shard

__all__ = ["Change", "remake", "Remake", "remake_stream", "Run"]

Change = Callable[[Iterator[Sample], Outcome], Iterable[Sample]]
"""What is done to the samples of a shard. It counts what it loses in the outcome; it must pickle."""


@dataclass(frozen=True)
class Run:
    """The Run flags: how a job is run."""

    engine: Engine
    dry: bool = False
    max_errors: int | None = None
    show: bool | None = None


@dataclass
class Remake(Task):
    """Shards made of samples: which, in which order, what is done to them, and where they go."""

    verb: str
    output: Output
    arrangements: dict[str, Arrangement]
    """By part; one without a name where there are no parts."""
    change: Change | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the result depends on."""

    def options(self) -> dict[str, Any]:
        inputs = {part: arrangement.fingerprint() for part, arrangement in self.arrangements.items()}
        return {"inputs": inputs} | self.output.options() | self.facts

    def begin(self, units: Sequence[Unit]) -> None:
        self.output.check_new(unit.name for unit in units)

    def plan(self) -> Iterator[Unit]:
        for part, arrangement in self.arrangements.items():
            for piece in arrangement.pieces(self.output, part):
                yield Unit(piece.name, (part, piece))

    def run(self, unit: Unit) -> Outcome:
        part, piece = unit.content
        outcome = Outcome()
        samples = _counted(self.arrangements[part].samples(piece), outcome)
        made = samples if self.change is None else self.change(samples, outcome)
        try:
            return write_shard(self.output, piece.name, made, first=piece.start, outcome=outcome)
        finally:
            _close(made)

    def commit(self, unit: Unit, outcome: Outcome) -> None:
        self.output.after(outcome)

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        self.output.finish(outcomes)


def _close(samples: Iterable[Sample]) -> None:
    """End a change that may have something running, however the writing ended."""
    if isinstance(samples, Generator):
        samples.close()


def _counted(samples: Iterator[Sample], outcome: Outcome) -> Iterator[Sample]:
    for sample in samples:
        outcome.read += 1
        yield sample


def remake(task: Remake, run: Run) -> JobReport:
    """Run the job; what it has made is remembered beside its output."""
    output = task.output
    return run_job(
        task,
        run.engine,
        ledger=ledger_place(output.pattern, task.verb),
        anew=output.overwrite,
        most_failed=run.max_errors,
        dry=run.dry,
        storage=output.storage,
        show=run.show,
    )


def remake_stream(
    verb: str, samples: Iterator[Sample], output: Output, change: Change | None = None
) -> JobReport:
    """The same for samples that come once, or go to one stream: from front to back, in this process."""
    total = Outcome()
    shards: list[Outcome] = []
    counted = _counted(samples, total)
    changed = iter(counted if change is None else change(counted, total))
    try:
        made = _Cut(changed, output)
        while made.more() or (output.stream and not shards):  # an empty stream is an archive, too
            name = output.pattern if output.stream else output.name(len(shards))
            output.check_new([] if output.stream else [name])
            shard = write_shard(output, name, made.shard(), first=total.written)
            output.after(shard)
            shards.append(shard)
            total.written += shard.written
            total.bytes += shard.bytes
    finally:
        _close(changed)
    output.finish(shards)
    report = JobReport(verb, len(shards), len(shards), outcomes=shards)
    report.add(total)
    return report


class _Cut:
    """Cuts a stream of samples into shards of so many samples or bytes."""

    def __init__(self, samples: Iterator[Sample], output: Output) -> None:
        self._samples, self._output = samples, output
        self._next = next(samples, None)
        self._cut = False

    def more(self) -> bool:
        """Whether there is another shard."""
        if self._cut and self._next is not None and not self._output.numbered:
            raise several_shards(self._output.pattern)
        return self._next is not None

    def shard(self) -> Iterator[Sample]:
        """The samples of the next shard."""
        output, count, size = self._output, 0, 0
        while self._next is not None:
            sample, bytes_here = self._next, sum(map(len, fields_of(self._next).values()))
            if output.is_full(count, size, bytes_here):
                self._cut = True
                return
            count, size = count + 1, size + bytes_here
            self._next = next(self._samples, None)
            yield sample
