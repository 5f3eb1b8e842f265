"""`tarmac sort`: samples in order, however many there are."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import typer

from tarmac.cli import flags

__all__ = ["parse_size", "sort_command"]

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LEAST = 1 << 20


def parse_size(text: str) -> int:
    """Understand `256MB`, `1.5g` and `4000000`."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size; 256MB and 2G are")
    size = int(float(match[1]) * _UNITS[match[2].lower()])
    if size < _LEAST:
        raise typer.BadParameter(f"{text}: sorting needs 1 MB at least")
    return size


def sort_command(
    shards: flags.Shards,
    output: flags.Output,
    by: Annotated[
        str, typer.Option(help="key, random, a field (cls), or a column (jpg.width, json.score).")
    ] = "key",
    kind: Annotated[
        Literal["bytes", "int", "float"] | None, typer.Option("--type", help="How values are compared.")
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="The largest first.")] = False,
    unique: Annotated[
        Literal["keep", "error", "first"], typer.Option(help="What to do with samples of equal value.")
    ] = "keep",
    tmp: Annotated[str, typer.Option(help="Where to make a working directory.")] = "",
    mem: Annotated[str, typer.Option(metavar="SIZE", help="Memory to sort in.")] = "256MB",
    fields: flags.Fields = "",
    missing: flags.Missing = "error",
    where: flags.Where = "",
    keys: flags.Keys = "",
    slice_: flags.Slice = "",
    slice_shard: flags.SliceShard = "",
    part: flags.Part = "",
    only: flags.Only = "",
    seed: flags.Seed = 0,
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
    """Sort samples by key, by what is in them, or at random; equal ones are all kept, in the order they came.

    Samples whose files lie apart are put together. Example: tarmac sort a.tar b.tar --by cls --type int -o
    'x-{i:06d}.tar' --max-samples 1000
    """
    from tarmac.storage import Cache
    from tarmac.tools.output import Output
    from tarmac.tools.select import Select
    from tarmac.tools.sort.sort import By, sort

    flags.only_data(output, as_json)
    report = sort(
        flags.sources(shards, allow_exec),
        Output(output, max_samples, max_bytes, rekey, compress, index, manifest, then, rm, overwrite),
        flags.run_flags(jobs, dry_run, max_errors),
        by=By(by, kind, reverse, unique, seed),
        select=Select(fields, missing, where, keys, slice_, slice_shard, part, only),
        memory=parse_size(mem),
        tmp=tmp,
        on_error=on_error,
        cache=Cache(cache) if cache else None,
    )
    flags.report_job(report, as_json, dry_run)
