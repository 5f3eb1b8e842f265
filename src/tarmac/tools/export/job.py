"""Export samples: the job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from tarmac.errors import CodecError, SampleError
from tarmac.jobs.task import Outcome, Task, Unit
from tarmac.samples.grouping import Sample
from tarmac.tools.export.destination import Destination, Target
from tarmac.tools.export.formats import RowOptions, Writer
from tarmac.tools.options import Run
from tarmac.tools.plan import OutputShard, SampleSource
from tarmac.tools.tally import Tally


@dataclass
class ExportJob(Task):
    """Each unit is a file, or what one shard adds to a directory."""

    destination: Destination
    target: Target
    row: RowOptions
    run_options: Run
    sources: dict[str, SampleSource]
    """The samples of each split; one without a name if nothing is split."""
    joined: bool = False
    """Whether all samples make one unit."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the result depends on, for the ledger."""

    verb = "export"

    def options(self) -> dict[str, Any]:
        inputs = {split: source.fingerprint() for split, source in self.sources.items()}
        options = {"inputs": inputs, "to": self.destination.format.name} | self.target.options()
        skip = {"on_error": "skip"} if self.run_options.on_error == "skip" else {}
        return options | self.row.options() | self.facts | self.destination.options() | skip

    def begin(self, units: Sequence[Unit]) -> None:
        self.destination.begin(self.target, units, self.row, list(self.sources))

    def plan(self) -> Iterator[Unit]:
        for split, source in self.sources.items():
            # No samples make a file, too: an empty one.
            first = OutputShard(self.target.name(0, split=split))
            if self.joined:
                shards = [OutputShard(first.name, 0, getattr(source, "size", 0))]
            else:
                shards = list(source.shards(self.target, split)) or [first]
            for number, shard in enumerate(shards):
                name = self.destination.unit_name(shard.name, split, number, len(shards))
                yield Unit(name, (split, shard))

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        return self.destination.writes(units)

    def run(self, unit: Unit) -> Outcome:
        split, shard = unit.content
        outcome, tally = Outcome(), Tally()
        samples = self.sources[split].samples(shard, tally)

        def fill(writer: Writer) -> None:
            self._fill(writer, samples, outcome)

        outcome.outputs |= self.destination.write(unit.name, self.target, self.row, fill)
        tally.add_to(outcome)
        return outcome

    def _fill(self, writer: Writer, samples: Iterator[Sample], outcome: Outcome) -> None:
        with closing(writer):
            for sample in samples:
                try:
                    outcome.bytes += writer.add(sample)
                except (CodecError, SampleError) as error:
                    error.at(url=sample.get("__url__"), key=sample["__key__"])
                    self.run_options.handle(error, outcome)
                else:
                    outcome.written += 1
            writer.finish()

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        self.destination.finish(self.target, self.row, list(self.sources))
