"""`tarmac map`: change samples by a command or a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tarmac.cli import flags

if TYPE_CHECKING:
    from tarmac.tools.map.commands import Command
    from tarmac.tools.map.functions import Function

__all__ = ["map_command"]


def map_command(
    shards: flags.Shards,
    output: flags.Output,
    command: Annotated[
        str, typer.Option("-c", "--command", help="Run by bash where the sample is sample.jpg, sample.cls, …")
    ] = "",
    script: Annotated[str, typer.Option(help="The same with a file for the interpreter.")] = "",
    interpreter: Annotated[str, typer.Option(help="What runs the script.")] = "bash",
    py: Annotated[
        str, typer.Option(help="A function of a sample: module:function or file.py:function.")
    ] = "",
    decode: Annotated[
        str, typer.Option(help="For --py: decode fields before, images as rgb8, pil, torchrgb, …")
    ] = "",
    multi: Annotated[
        bool, typer.Option("--multi", help="The command makes samples: sample-000000.jpg, sample-000001.jpg.")
    ] = False,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="Samples of a shard come as they are done, not as they came.")
    ] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds for the command of one sample.")] = None,
    log_field: Annotated[str, typer.Option(help="Field to keep what the command says in.")] = "",
    keep_dir: Annotated[str, typer.Option(help="Directory to keep the files of failed samples in.")] = "",
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
    """Change samples by a command or a function, in parallel; their order stays, unless --unordered.

    A command that removes all sample.* files drops the sample.

    Example: tarmac map 'in-*.tar' -c 'convert sample.jpg -resize 256 sample.jpg' -o out/
    """
    from tarmac.storage import Cache
    from tarmac.tools.map.map import Mapping, map_samples
    from tarmac.tools.output import Output
    from tarmac.tools.select import Select

    if sum(map(bool, (command, script, py))) != 1:
        raise typer.BadParameter("one of -c CMD, --script FILE and --py module:function says what to do")
    if py and (multi or timeout is not None or log_field or keep_dir):
        raise typer.BadParameter("--multi, --timeout, --log-field and --keep-dir are for commands")
    if decode and not py:
        raise typer.BadParameter("--decode is for --py; a command gets files")
    if interpreter != "bash" and not script:
        raise typer.BadParameter("--interpreter is for --script")
    if timeout is not None and timeout <= 0:
        raise typer.BadParameter("--timeout must be positive")
    flags.only_data(output, as_json)
    work: Command | Function
    if py:
        from tarmac.tools.map.functions import Function

        work = Function(py, decode)
    else:
        from tarmac.tools.map.commands import Command

        work = Command(command, script, interpreter, multi, timeout, log_field, keep_dir)
    report = map_samples(
        flags.sources(shards, allow_exec),
        Mapping(work, on_error, max_errors, not unordered),
        Output(output, max_samples, max_bytes, rekey, compress, index, manifest, then, rm, overwrite),
        flags.run_flags(jobs, dry_run, max_errors),
        select=Select(fields, missing, where, keys, slice_, slice_shard, part, only),
        jobs=jobs,
        cache=Cache(cache) if cache else None,
    )
    flags.report_job(report, as_json, dry_run)
