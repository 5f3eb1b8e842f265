"""`tarmac join`: fields from elsewhere for samples with the same key."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tarmac.cli import flags

__all__ = ["join_command"]


def join_command(
    shards: flags.Shards,
    source: Annotated[
        list[str], typer.Option("--with", help="Other shards, or a csv, tsv, jsonl or parquet table.")
    ],
    output: flags.Output,
    how: Annotated[
        Literal["left", "inner"], typer.Option(help="Keep samples without a partner, or drop them.")
    ] = "left",
    replace: Annotated[bool, typer.Option("--replace", help="New fields may replace old ones.")] = False,
    prefix: Annotated[str, typer.Option(help="What the names of new fields begin with: clip.")] = "",
    duplicates: Annotated[
        Literal["error", "first"], typer.Option(help="What to do when a key comes twice in --with.")
    ] = "error",
    key: Annotated[str, typer.Option(help="The column of a table that holds the key.")] = "",
    as_: Annotated[
        Literal["fields", "json"], typer.Option("--as", help="A table: a field each column, or one of JSON.")
    ] = "fields",
    tmp: Annotated[str, typer.Option(help="Where to make a working directory.")] = "",
    fields: flags.Fields = "",
    missing: flags.Missing = "error",
    where: flags.Where = "",
    keys: flags.Keys = "",
    slice_: flags.Slice = "",
    slice_shard: flags.SliceShard = "",
    part: flags.Part = "",
    only: flags.Only = "",
    max_samples: flags.MaxSamples = None,
    max_bytes: flags.MaxBytes = None,
    rekey: flags.Rekey = "",
    compress: flags.Compress = "",
    index: flags.Index = False,
    manifest: flags.Manifest = "",
    then: flags.Then = "",
    rm: flags.Remove = False,
    overwrite: flags.Overwrite = False,
    jobs: flags.Jobs = flags.CORES,
    on_error: flags.OnError = "abort",
    max_errors: flags.MaxErrors = None,
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
    cache: flags.CacheDir = "",
    allow_exec: flags.AllowExec = False,
) -> None:
    """Add fields to samples with the same key, from other shards or a table; --fields acts on the result.

    Example: tarmac join 'train-*.tar' --with captions.csv --key name -o joined/
    """
    from tarmac.storage import Cache
    from tarmac.tools.join.join import Joining, join
    from tarmac.tools.output import Output
    from tarmac.tools.select import Select

    flags.only_data(output, as_json)
    report = join(
        flags.sources(shards, allow_exec),
        flags.sources(source, allow_exec),
        Output(output, max_samples, max_bytes, rekey, compress, index, manifest, then, rm, overwrite),
        flags.run_flags(jobs, dry_run, max_errors),
        joining=Joining(how, replace, prefix, duplicates, key, as_),
        select=Select(fields, missing, where, keys, slice_, slice_shard, part, only),
        tmp=tmp,
        on_error=on_error,
        cache=Cache(cache) if cache else None,
    )
    flags.report_job(report, as_json, dry_run)
