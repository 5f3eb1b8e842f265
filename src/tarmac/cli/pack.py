"""`tarmac pack`: shards from files, folders of classes, recipes, tables and functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tarmac.cli import flags
from tarmac.cli.output import say

if TYPE_CHECKING:
    from tarmac.tools.pack.sources import Skipped

__all__ = ["pack_command"]

_SOURCE = "Source"


def _flag(*names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_SOURCE, **more)


def pack_command(
    output: flags.Output,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...", help="Directories, recipes, tables; URLs of those; with --py, arguments."
        ),
    ] = None,
    kind: Annotated[
        Literal["dir", "imagefolder", "recipe", "csv", "tsv", "jsonl", "parquet", "lines"] | None,
        _flag("--from", help="What the sources are; else as their names say."),
    ] = None,
    key: Annotated[str, _flag(help="Of a table, the column of keys; else rows are numbered.")] = "",
    files: Annotated[
        str, _flag(help="Of a table, columns that name files, and their fields: img=jpg,mask=png.")
    ] = "",
    columns: Annotated[
        str, _flag(help="Of a table, the other columns to take, and their fields: label=cls,caption=txt.")
    ] = "",
    base: Annotated[
        str, _flag(help="What relative names of files are relative to; else to the list they are in.")
    ] = "",
    py: Annotated[str, _flag("--py", help="module:function that yields samples.")] = "",
    require: Annotated[str, _flag(help="Fields that every sample must have: jpg,cls.")] = "",
    part: flags.Part = "",
    only: flags.Only = "",
    shuffle: flags.Shuffle = False,
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
    shard_id: Annotated[
        int, typer.Option(min=0, rich_help_panel="Run", help="Make only shards number I, I+N, I+2N, …")
    ] = 0,
    total_shards: Annotated[
        int, typer.Option(min=1, rich_help_panel="Run", help="N, how many such commands there are.")
    ] = 1,
    jobs: flags.Jobs = flags.CORES,
    on_error: flags.OnError = "abort",
    max_errors: flags.MaxErrors = None,
    dry_run: flags.DryRun = False,
    as_json: flags.AsJson = False,
    allow_exec: flags.AllowExec = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, rich_help_panel="Run", help="Seconds for each pipe: command.")
    ] = 600.0,
) -> None:
    """Pack files, tables or a function's samples into shards of 10,000 samples, or as --max-… say.

    Running the same command again makes what is missing. Example: tarmac pack photos/ -o 'x-{i:06d}.tar'
    """
    from tarmac.tools.output import Output
    from tarmac.tools.pack.function import pack_function
    from tarmac.tools.pack.pack import Making, pack
    from tarmac.tools.pack.sources.columns import Columns, parse_pairs
    from tarmac.tools.pack.sources.kinds import Reading

    flags.only_data(output, as_json)
    target = Output(output, max_samples, max_bytes, rekey, compress, index, manifest, then, rm, overwrite)
    required = frozenset(name.strip().lower() for name in require.split(",") if name.strip())
    making = Making(shuffle, seed, part, only, required, on_error, shard_id, total_shards)
    run = flags.run_flags(jobs, dry_run, max_errors)
    if py:
        if kind or key or files or columns or base:
            raise typer.BadParameter("--py takes no flags of other sources")
        flags.report_job(pack_function(py, sources or [], target, run, making=making), as_json, dry_run)
        return
    if not sources:
        raise typer.BadParameter("name the sources to pack, or --py module:function")
    wanted = Columns(key, parse_pairs(files, "--files"), parse_pairs(columns, "--columns"))
    reading = Reading(kind, wanted, base, allow_exec, timeout)
    packed = pack(sources, target, run, making=making, reading=reading)
    _report_skipped(packed.skipped)
    flags.report_job(packed.job, as_json, dry_run, skipped=packed.skipped.counts)


def _report_skipped(skipped: Skipped) -> None:
    if skipped:
        say(f"left out, of no sample: {skipped}", err=True)
