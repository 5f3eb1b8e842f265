"""Export samples to files of another format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Unpack

from tarmac.errors import UsageError
from tarmac.indexing.manifest import Manifest
from tarmac.jobs.ledger import ledger_url
from tarmac.jobs.report import Report
from tarmac.jobs.run import run_job
from tarmac.jobs.task import Unit
from tarmac.storage import is_stream
from tarmac.storage.urls import Shards
from tarmac.tools.export.columns import ReadOnce, first_columns, indexed_columns
from tarmac.tools.export.destination import Destination, Target
from tarmac.tools.export.formats import FORMATS, RowOptions, guess_format
from tarmac.tools.export.job import ExportJob
from tarmac.tools.export.values import Kind, make_kinds
from tarmac.tools.options import Access, AccessArgs, ErrorArgs, Run, RunArgs, SelectArgs, bundle, verb
from tarmac.tools.plan import OnePass, OutputShard, Plan, StreamedShards, can_index, plan
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

    The extension of a field tells whether it holds "text", an "int", "json" or "bytes"; `kinds` overrides that.
    `key` and `header` include the key and the column names. `hf_split` names the split of hf, if `split` does not.
    """
    output = os.fspath(output)
    select, access, run = bundle(Select, options), bundle(Access, options), bundle(Run, options)
    name = format or guess_format(output)
    if name not in FORMATS:
        raise UsageError(f"expected one of {', '.join(FORMATS)}, got {name!r}.", field="format")
    kind = FORMATS[name]
    destination = (kind.destination or Destination)(kind, output, hf_split)
    destination.check()
    if select.shares and not select.only:
        destination = destination.with_splits()
    inputs = access.inputs(sources)
    unnamed = any(map(is_stream, inputs.urls))
    target = Target(
        destination.pattern,
        max_samples,
        max_bytes,
        overwrite=overwrite,
        storage=access.storage,
        extension=kind.extension,
    )
    row = RowOptions(make_kinds(kinds or {}).after(select.rule), None, key, header)
    if kind.table and select.rule is not None and select.rule.kept:
        row = replace(row, columns=tuple(new for new, _ in select.rule.kept))
    if destination.directory and (unnamed or (select.slice and not can_index(inputs.urls))):
        target = replace(target, joined=True)
    planned = plan(
        [inputs],
        select,
        target,
        access,
        progress=run.progress,
        stream_remote=_can_stream(select, target) and not (kind.table and row.columns is None),
    )
    (source, *_) = planned.sources.values()
    if isinstance(source, StreamedShards) and target.cut:
        raise UsageError(
            "standard input, commands and compressed shards can be read only once, so `max_samples` and `max_bytes` "
            "do not apply.",
            hint="tarmac copy, to plain shards.",
        )
    joined = target.stream or isinstance(source, OnePass)
    if kind.table and row.columns is None:
        row = replace(row, columns=_columns(planned, select, unnamed))
    job = ExportJob(
        destination,
        target,
        row,
        replace(run, engine=None),
        planned.sources,
        joined,
        {"select": select.options()},
    )
    report = _run(job, run, remembered=not unnamed)
    if not run.dry_run:
        planned.add_to(report)
    return report


def _can_stream(select: Select, target: Target) -> bool:
    """Return whether reading the shards once, without an index, is enough: remote ones are fetched only once."""
    negative = any(
        (number or 0) < 0
        for each in (select.slice, select.slice_shard)
        if each
        for number in (each.start, each.stop)
    )
    sliced = negative or (select.slice is not None and target.by_shard)
    return not (target.cut or sliced or (select.shares and not select.only))


def _columns(planned: Plan, select: Select, unnamed: bool) -> tuple[str, ...]:
    """Return the columns of a table; samples that were read for that and cannot be read again are kept."""
    (source, *_) = planned.sources.values()
    if not isinstance(source, StreamedShards):
        return indexed_columns(planned.sources.values(), select)
    stream = source if isinstance(source, OnePass) else OnePass(source.inputs, source.select, source.access)
    tally = Tally()
    samples, columns = first_columns(stream.samples(OutputShard(""), tally))
    if unnamed:
        planned.sources = {"": ReadOnce(samples, tally)}
    return columns


def _run(job: ExportJob, run: Run, *, remembered: bool) -> Report:
    """Run the job; inputs that cannot be recognised again have no ledger."""
    target = job.target
    if target.stream and not run.dry_run:
        return _write_stream(job)
    if not remembered and not target.overwrite:
        job.begin(list(job.plan()))
    path, name = job.destination.ledger
    with job.destination.prepared(target):
        return run_job(
            job,
            run.make_engine(),
            ledger=ledger_url(path, name) if remembered else None,
            overwrite=target.overwrite,
            max_errors=run.max_errors,
            dry_run=run.dry_run,
            storage=target.storage,
            progress=run.progress,
        )


def _write_stream(job: ExportJob) -> Report:
    """Write to standard output, in this process, without a ledger."""
    (unit,) = job.plan()
    outcome = job.run(Unit(job.target.pattern, unit.content))
    report = Report(job.verb, 1, 1, outcomes=[outcome])
    report.add(outcome)
    return report
