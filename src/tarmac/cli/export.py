"""`tarmac export`: samples as files that other programs read."""

from __future__ import annotations

from typing import Annotated

import typer

from tarmac.cli import flags

__all__ = ["export_command"]

_FORMAT = "dir, jsonl, tsv, csv, yaml, parquet, sqlite, lmdb, tfrecord or hf; else as the name of -o says."


def export_command(
    shards: flags.Shards,
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            rich_help_panel="Write",
            help="Where to: a file, x-{i:05d}.parquet, DIR/ for a file of each shard, URL, - for text.",
        ),
    ],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", rich_help_panel="Write", help=_FORMAT)] = "",
    fields: flags.Fields = "",
    missing: flags.Missing = "error",
    where: flags.Where = "",
    keys: flags.Keys = "",
    slice_: flags.Slice = "",
    slice_shard: flags.SliceShard = "",
    part: flags.Part = "",
    only: flags.Only = "",
    kinds: Annotated[
        str,
        typer.Option(
            "--as",
            rich_help_panel="Write",
            help="What fields hold, where their names do not say: caption=text,score=json; int, bytes.",
        ),
    ] = "",
    nokey: Annotated[
        bool, typer.Option("--nokey", rich_help_panel="Write", help="Leave out the key.")
    ] = False,
    noheader: Annotated[
        bool, typer.Option("--noheader", rich_help_panel="Write", help="No names of columns (tsv, csv).")
    ] = False,
    split: Annotated[
        str, typer.Option("--split", rich_help_panel="Write", help="The name of the split (hf).")
    ] = "train",
    max_samples: flags.MaxSamples = None,
    max_bytes: flags.MaxBytes = None,
    overwrite: flags.Overwrite = False,
    jobs: flags.Jobs = flags.CORES,
    on_error: flags.OnError = "abort",
    max_errors: flags.MaxErrors = None,
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
    cache: flags.CacheDir = "",
    allow_exec: flags.AllowExec = False,
) -> None:
    """Export samples to files of another format.

    Text, whole numbers and JSON are told by the names of fields; other fields are bytes, which jsonl has in
    base64 and tsv and csv do not take. Example: tarmac export 'train-*.tar' -o 'train-{i:05d}.parquet'
    """
    from tarmac.storage import Cache
    from tarmac.tools.export.export import export
    from tarmac.tools.export.form import Shape, form_of_name
    from tarmac.tools.export.values import parse_kinds
    from tarmac.tools.select import Select

    if as_json and output == "-":
        raise typer.BadParameter("--json reports where -o - puts the data: on standard output")
    report = export(
        flags.sources(shards, allow_exec),
        to or form_of_name(output),
        output,
        flags.run_flags(jobs, dry_run, max_errors),
        select=Select(fields, missing, where, keys, slice_, slice_shard, part, only),
        shape=Shape(parse_kinds(kinds), key=not nokey, header=not noheader),
        max_samples=max_samples,
        max_bytes=max_bytes,
        split=split,
        on_error=on_error,
        overwrite=overwrite,
        cache=Cache(cache) if cache else None,
    )
    flags.report_job(report, as_json, dry_run)
