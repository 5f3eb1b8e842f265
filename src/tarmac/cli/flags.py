"""The flags that mean the same on every verb, in four groups: Select, Order, Write and Run."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from tarmac.cli.saying import say, say_json

if TYPE_CHECKING:
    from tarmac.jobs.run import JobReport
    from tarmac.storage.urls import ShardUrl
    from tarmac.tools.rewrite import Run

__all__ = [
    "AllowExec", "AsJson", "CacheDir", "Compress", "DryRun", "Fields", "Index", "Interleave", "Jobs",
    "Keys", "Manifest", "manifest_or_sources", "manifests", "MaxBytes", "MaxErrors",
    "MaxSamples", "Missing", "OnError", "Only", "only_data", "Output", "Overwrite", "Part", "Rekey",
    "Remove", "report_job", "run_flags", "Seed", "Shards", "Shuffle", "Slice", "SliceShard", "sources",
    "Then", "Where",
]  # fmt: skip

_SELECT, _ORDER, _WRITE, _RUN = "Select", "Order", "Write", "Run"


def _flag(group: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=group, **more)


Shards = Annotated[
    list[str], typer.Argument(metavar="SHARDS...", help="Files, URLs, patterns, @list, a manifest, or -.")
]

Fields = Annotated[
    str, _flag(_SELECT, "--fields", help="Fields to keep, rename or drop: img=jpg|png,cls or -json.")
]
Missing = Annotated[
    Literal["error", "skip"],
    _flag(_SELECT, "--missing", help="What to do with samples without such a field."),
]
Where = Annotated[
    str, _flag(_SELECT, "--where", help="A condition: \"jpg.width >= 512 and json.lang = 'en'\".")
]
Keys = Annotated[
    str, _flag(_SELECT, "--keys", help="Only the samples whose keys this file lists, one a line.")
]
Slice = Annotated[str, _flag(_SELECT, "--slice", help="a:b:c of all samples, as in Python.")]
SliceShard = Annotated[str, _flag(_SELECT, "--slice-shard", help="a:b:c of the samples of each shard.")]
Part = Annotated[str, _flag(_SELECT, "--part", help="Split by a hash of the key: train=0.9,val=0.1.")]
Only = Annotated[str, _flag(_SELECT, "--only", help="Of the parts, only this one.")]

Shuffle = Annotated[bool, _flag(_ORDER, "--shuffle", help="In random order.")]
Seed = Annotated[int, _flag(_ORDER, "--seed", help="Another seed is another order.")]
Interleave = Annotated[
    int, _flag(_ORDER, "--interleave", min=0, help="One sample of each of K shards in turn.")
]

Output = Annotated[
    str,
    _flag(
        _WRITE, "-o", "--output", help="Where to: x-{i:06d}.tar, {part}-{i}.tar, DIR/ to keep names, URL, -."
    ),
]
MaxSamples = Annotated[
    int | None, _flag(_WRITE, "--max-samples", min=1, help="Samples of a shard or file, at most.")
]
MaxBytes = Annotated[
    int | None, _flag(_WRITE, "--max-bytes", min=1, help="Bytes of payload of a shard or file, at most.")
]
Rekey = Annotated[str, _flag(_WRITE, "--rekey", help="New keys, from {i} and {key}: {i:09d}.")]
Compress = Annotated[str, _flag(_WRITE, "--compress", help="gz, zst, bz2 or xz; else as the name says.")]
Index = Annotated[bool, _flag(_WRITE, "--index", help="Write the index of each shard, too.")]
Manifest = Annotated[
    str, _flag(_WRITE, "--manifest", help="Write a manifest of all shards, too, and their indexes.")
]
Then = Annotated[
    str, _flag(_WRITE, "--then", help="A command for each shard, which must succeed: 'cp {path} /mnt'.")
]
Remove = Annotated[bool, _flag(_WRITE, "--rm", help="Remove each shard after --then.")]
Overwrite = Annotated[bool, _flag(_WRITE, "--overwrite", help="Begin anew, and replace what is there.")]

Jobs = Annotated[int, _flag(_RUN, "-j", "--jobs", min=1, help="Processes.")]
OnError = Annotated[
    Literal["abort", "skip"], _flag(_RUN, "--on-error", help="At a bad sample: stop, or leave it out.")
]
MaxErrors = Annotated[int | None, _flag(_RUN, "--max-errors", min=0, help="Stop when more samples were bad.")]
DryRun = Annotated[bool, _flag(_RUN, "--dry-run", help="Only say what there is to do.")]
AsJson = Annotated[bool, _flag(_RUN, "--json", help="Report as JSON.")]
CacheDir = Annotated[str, _flag(_RUN, "--cache", help="Directory to keep remote shards in.")]
AllowExec = Annotated[bool, _flag(_RUN, "--allow-exec", help="Allow pipe: commands.")]

CORES = os.cpu_count() or 1


def sources(shards: list[str], allow_exec: bool | None = False) -> list[ShardUrl]:
    """Return the shards that are meant; commands only if allowed. Verbs that can read none say None."""
    from tarmac.errors import UnsafeUrl
    from tarmac.storage.urls import expand

    try:
        return expand(shards, commands=bool(allow_exec))
    except UnsafeUrl as error:
        if allow_exec is None and error.hint:
            error.hint = "a file or an object; what a command prints can be saved to one first."
        raise


def manifests(names: list[str]) -> list[str]:
    """Return the manifests that are meant; refuse a command."""
    from tarmac.errors import UnsafeUrl
    from tarmac.storage import scheme_of

    for name in names:
        if scheme_of(name) == "pipe":
            raise UnsafeUrl("a manifest is a file or an object, not a command.", url=name)
    return names


def manifest_or_sources(shards: list[str], allow_exec: bool | None = False) -> str | list[ShardUrl]:
    """Return the manifest, where one is all that was named: it says more than the shards it lists."""
    from tarmac.storage import scheme_of

    name = shards[0].partition("?")[0].lower() if len(shards) == 1 else ""
    if name.endswith(".json") and scheme_of(name) != "pipe":
        return shards[0]
    return sources(shards, allow_exec)


def run_flags(jobs: int, dry_run: bool = False, max_errors: int | None = None) -> Run:
    """What the Run flags ask for."""
    from tarmac.jobs.engines.local import LocalEngine
    from tarmac.tools.rewrite import Run

    return Run(LocalEngine(jobs), dry_run, max_errors)


def only_data(output: str, as_json: bool) -> None:
    """Keep all but data off standard output, if data goes there: reports, and what functions print."""
    if output == "-":
        if as_json:
            raise typer.BadParameter("--json and -o - would both write to standard output")
        sys.stdout = Aside(sys.stdout.buffer)


class Aside:
    """Standard output for data alone: text goes to standard error."""

    def __init__(self, data: BinaryIO) -> None:
        self.buffer = data

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def report_job(report: JobReport, as_json: bool, dry_run: bool = False, **more: Any) -> None:
    """Say what a job did: a line on standard error, or JSON on standard output; 1 if samples were lost."""
    if as_json:
        say_json(report.facts() | more)
    elif dry_run:
        before = f", {report.kept} done before" if report.kept else ""
        say(f"{report.verb}: {report.units - report.kept} to do{before}", err=True)
    else:
        for error in report.errors:
            say(f"FAILED {error}", err=True)
        if more_failed := report.failed - len(report.errors):
            say(f"FAILED … and {more_failed} more", err=True)
        if report.left_over:
            say(f"of an earlier job, and no part of this one: {', '.join(report.left_over)}", err=True)
        for remark in report.remarks:
            say(remark, err=True)
        say(str(report), err=True)
    if not report.ok:
        raise typer.Exit(1)
