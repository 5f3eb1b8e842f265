"""`tarmac copy`: cat, split, reshard, subset, rename, mix and shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tarmac.cli import flags

if TYPE_CHECKING:
    from tarmac.storage.urls import ShardUrl

__all__ = ["copy_command"]


def copy_command(
    output: flags.Output,
    shards: Annotated[
        list[str] | None,
        typer.Argument(metavar="SHARDS...", help="Files, URLs, patterns, @list, a manifest, or -."),
    ] = None,
    fields: flags.Fields = "",
    missing: flags.Missing = "error",
    where: flags.Where = "",
    keys: flags.Keys = "",
    slice_: flags.Slice = "",
    slice_shard: flags.SliceShard = "",
    part: flags.Part = "",
    only: flags.Only = "",
    shuffle: flags.Shuffle = False,
    seed: flags.Seed = 0,
    buffer: Annotated[
        int, typer.Option(min=1, rich_help_panel="Order", help="Samples among which a stream is shuffled.")
    ] = 10_000,
    interleave: flags.Interleave = 0,
    mix: Annotated[
        list[str] | None,
        typer.Option("--mix", rich_help_panel="Order", help="SHARDS=WEIGHT, once for each source."),
    ] = None,
    until: Annotated[
        Literal["first", "all"],
        typer.Option(rich_help_panel="Order", help="A mixture ends with its first source, or all."),
    ] = "all",
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
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
    cache: flags.CacheDir = "",
    allow_exec: flags.AllowExec = False,
) -> None:
    """Copy samples to new shards: all or some, renamed, split, mixed or shuffled.

    Example: tarmac copy a.tar b.tar -o 'x-{i:06d}.tar' --max-samples 1000
    """
    from tarmac.storage import Cache
    from tarmac.tools.copy import Order_, copy
    from tarmac.tools.output import Output
    from tarmac.tools.select import Select

    flags.only_data(output, as_json)
    named, weights = _mixed(mix or [])
    if bool(shards) == bool(named):
        raise typer.BadParameter("name the shards to copy, or the sources to --mix")
    if shards:
        sources: list[ShardUrl] | list[list[ShardUrl]] = flags.sources(shards, allow_exec)
    else:
        sources = [flags.sources([source], allow_exec) for source in named]
    report = copy(
        sources,
        Output(
            output,
            max_samples,
            max_bytes,
            rekey,
            compress,
            index,
            manifest,
            then,
            rm,
            overwrite,
        ),
        flags.run_flags(jobs, dry_run),
        select=Select(fields, missing, where, keys, slice_, slice_shard, part, only),
        ordering=Order_(shuffle, seed, buffer, interleave, weights, until),
        cache=Cache(cache) if cache else None,
    )
    flags.report_job(report, as_json, dry_run)


def _mixed(mix: list[str]) -> tuple[list[str], tuple[float, ...]]:
    """The sources of a mixture and their weights."""
    named, weights = [], []
    for item in mix:
        source, _, weight = item.rpartition("=")
        try:
            weights.append(float(weight))
        except ValueError:
            raise typer.BadParameter(f"--mix {item!r}: SHARDS=WEIGHT was expected") from None
        named.append(source)
    return named, tuple(weights)
