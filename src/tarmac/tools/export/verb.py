"""Export samples to files of another format."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

from tarmac.errors import CodecError, SampleError, UsageError
from tarmac.indexing.manifest import Manifest
from tarmac.jobs.report import Report
from tarmac.jobs.statuses import new_outcome
from tarmac.jobs.task import Outcome, Unit
from tarmac.storage import is_stream
from tarmac.storage.urls import Shards
from tarmac.tools.content import Content
from tarmac.tools.export.columns import find_columns
from tarmac.tools.export.destination import Destination
from tarmac.tools.export.formats import FORMATS, RowOptions, guess_format
from tarmac.tools.export.values import Kind, Kinds
from tarmac.tools.options import Access, AccessArgs, ErrorArgs, Run, RunArgs, SelectArgs, bundle, verb
from tarmac.tools.plan import OnePass, OutputShard, SampleSource, StreamedShards, can_index, plan
from tarmac.tools.reading import Rereading
from tarmac.tools.select import Select
from tarmac.tools.tally import Tally


class ExportArgs(SelectArgs, RunArgs, ErrorArgs, AccessArgs, total=False):
    """The shared keyword arguments of `export`."""


@verb(ExportArgs, Select, Run, Access)
def export(
    sources: Shards | Manifest,
    output: str | os.PathLike[str],
    format: str | None = None,
    *,
    kinds: Mapping[str, Kind] | None = None,
    key: bool = True,
    header: bool = True,
    hf_split: str = "train",
    max_samples: int | None = None,
    max_bytes: int | None = None,
    overwrite: bool = False,
    **options: Unpack[ExportArgs],
) -> Report:
    """Export the selected samples to files of another format.

    The format is one of dir, jsonl, tsv, csv, yaml, parquet, sqlite, lmdb, tfrecord and hf, by default that of the
    extension of the output. The output is a file, a pattern with `{i}`, `{name}` or `{split}`, a directory (for
    dir and hf; with a slash at its end, for a file of each shard), or `-`. Files are written in parallel. Running
    the same job again writes only what is missing.

    The extension of a field determines whether it holds "text", an "int", "json" or "bytes"; `kinds` overrides that.
    `key` and `header` include the key and the column names. `hf_split` names the split of hf, if `split` does not.
    """
    output = os.fspath(output)
    select, access, run = bundle(Select, options), bundle(Access, options), bundle(Run, options)
    name = format or guess_format(output)
    if name not in FORMATS:
        raise UsageError(f"expected one of {', '.join(FORMATS)}, got {name!r}.", field="format")
    kind = FORMATS[name]
    destination = (kind.destination or Destination).to(
        output,
        format=kind,
        hf_split=hf_split,
        several=bool(select.shares and not select.only),
        max_samples=max_samples,
        max_bytes=max_bytes,
        overwrite=overwrite,
        storage=access.storage,
    )
    access = access.shared(run, destination)
    inputs = access.inputs(sources)
    unnamed = any(map(is_stream, inputs.urls))
    row = RowOptions(Kinds(kinds or {}).after(select.rule), None, key, header)
    if kind.table and select.rule is not None and select.rule.kept:
        row = replace(row, columns=tuple(select.rule.names))
    if destination.directory and (unnamed or (select.slice and not can_index(inputs.urls))):
        destination = replace(destination, joined=True)
    planned = plan(
        [inputs],
        select,
        destination,
        access,
        progress=run.progress,
        processes=run.workers,
        stream_remote=_can_stream(select, destination) and not (kind.table and row.columns is None),
    )
    (source, *_) = planned.sources.values()
    if isinstance(source, StreamedShards) and destination.cut:
        raise UsageError(
            "standard input, commands and compressed shards can be read only once, so `max_samples` and `max_bytes` "
            "do not apply.",
            hint="tarmac copy, to plain shards.",
        )
    joined = destination.stream or isinstance(source, OnePass)
    if kind.table and row.columns is None:
        row = replace(row, columns=find_columns(planned, select, once=unnamed))
    facts = {"select": select.options()}
    job = ExportJob(destination, row, replace(run, engine=None), planned.sources, joined, facts)
    report = _run(job, run, remembered=not unnamed)
    if not run.dry_run:
        planned.add_to(report)
    return report


@dataclass
class ExportJob(Rereading):
    """Each unit is a file, or what one shard adds to a directory."""

    destination: Destination
    row: RowOptions
    run_options: Run
    sources: dict[str, SampleSource]
    """The samples of each split; one without a name if there are no splits."""
    joined: bool = False
    """Whether all samples make one unit."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What else the result depends on, for the ledger."""

    verb = "export"

    @property
    def lists_outputs(self) -> bool:  # type: ignore[override]
        return self.destination.lists_outputs

    @property
    def names_files(self) -> bool:  # type: ignore[override]
        return self.destination.names_files

    def options(self) -> dict[str, Any]:
        inputs = {split: source.fingerprint() for split, source in self.sources.items()}
        options = {"inputs": inputs, "to": self.destination.format.name} | self.destination.options()
        skip = {"on_error": "skip"} if self.run_options.on_error == "skip" else {}
        return options | self.row.options() | self.facts | skip

    def earlier_options(self) -> dict[str, Any]:
        inputs = {split: source.earlier_fingerprint() for split, source in self.sources.items()}
        return self.options() | {"inputs": inputs}

    def begin(self, units: Sequence[Unit]) -> None:
        self.destination.begin(units, self.row, list(self.sources))

    def plan(self) -> Iterator[Unit]:
        for split, source in self.sources.items():
            # No samples make a file, too: an empty one.
            first = OutputShard(self.destination.name(0, split=split))
            if self.joined:
                shards = [OutputShard(first.name, 0, getattr(source, "size", 0))]
            else:
                shards = list(source.shards(self.destination, split)) or [first]
            for number, shard in enumerate(shards):
                name = self.destination.unit_name(shard.name, split, number, len(shards))
                yield Unit(name, (split, shard))

    def writes(self, units: Sequence[Unit]) -> Iterator[str]:
        return self.destination.writes(units)

    def run(self, unit: Unit) -> Outcome:
        split, shard = unit.content
        outcome, tally, content = new_outcome(self.statuses(unit)), Tally(), Content()
        samples = content.over(self.sources[split].samples(shard, tally))
        with self.destination.opened(unit.name, self.row, outcome) as writer:
            for sample in samples:
                try:
                    outcome.bytes += writer.add(sample)
                except (CodecError, SampleError) as error:
                    error.at(url=sample.get("__url__"), key=sample["__key__"])
                    self.run_options.handle(error, outcome)
                else:
                    outcome.written += 1
        tally.add_to(outcome)
        outcome.content = str(content)
        return outcome

    def finish(self, outcomes: Sequence[Outcome]) -> None:
        self.destination.complete(self.row, list(self.sources))


def _can_stream(select: Select, destination: Destination) -> bool:
    """Return whether reading the shards once, without an index, is enough: remote ones are fetched only once."""
    negative = any(
        (number or 0) < 0
        for each in (select.slice, select.slice_shard)
        if each
        for number in (each.start, each.stop)
    )
    sliced = negative or (select.slice is not None and destination.by_shard)
    return not (destination.cut or sliced or destination.several)


def _run(job: ExportJob, run: Run, *, remembered: bool) -> Report:
    """Run the job; inputs that cannot be recognised again have no ledger."""
    if job.destination.stream and not run.dry_run:
        return _write_stream(job)
    if not remembered and not job.destination.overwrite:
        job.begin(list(job.plan()))
    with job.destination.prepared(run.shared_home(job.destination)) as destination:
        return run.run_job(
            replace(job, destination=destination),
            destination.ledger if remembered else None,
            overwrite=destination.overwrite,
            storage=destination.storage,
        )


def _write_stream(job: ExportJob) -> Report:
    """Write to standard output, in this process, without a ledger."""
    (unit,) = job.plan()
    outcome = job.run(Unit(job.destination.pattern, unit.content))
    report = Report(job.verb, 1, 1, outcomes=[outcome])
    report.add(outcome)
    return report
