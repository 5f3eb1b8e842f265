"""`tarmac cache`: fill, list, verify and evict the cache of remote shards."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tarmac.cli.command import Group, argument, build, flag
from tarmac.cli.flags import JSON, SHARDS
from tarmac.cli.output import say, say_json
from tarmac.cli.types import COUNT, SIZE
from tarmac.display import display_url

if TYPE_CHECKING:
    from tarmac import Cache

_DIRECTORY: Group = [
    flag("--cache", "directory", metavar="DIR", help="The cache directory. [default: $WDS_CACHE]")
]
_MAX_BYTES: Group = [flag("--max-bytes", type=SIZE, help="Size of the cache. [default: $WDS_CACHE_SIZE]")]
_WARM: Group = [
    flag("-j", "--jobs", type=COUNT, help="Downloads at a time. [default: 8]"),
    flag("--allow-exec", is_flag=True, help="Allow pipe: inputs, which run commands."),
]
_EVICT: Group = [
    argument("shards", "[SHARDS...]", "Only these shards.", nargs=-1),
    flag("--max-bytes", type=SIZE, help="Remove the least recently used shards, down to this size."),
    flag("--all", "everything", is_flag=True, help="Remove all shards."),
]

command = click.Group("cache", help="Manage the cache of remote shards.", no_args_is_help=True)


@build(SHARDS, _DIRECTORY, _MAX_BYTES, _WARM, JSON, example="tarmac cache warm 's3://b/x-{000..099}.tar'")
def warm(
    sources: tuple[str, ...],
    directory: str | None = None,
    max_bytes: int | None = None,
    jobs: int = 8,
    allow_exec: bool = False,
    as_json: bool = False,
) -> None:
    """Download shards that are not cached. The exit status is 3 if some could not be downloaded."""
    from tarmac.cli import exit_code
    from tarmac.tools.cache import warm as fill

    report = fill(_cache(directory, max_bytes), list(sources), threads=jobs, allow_exec=allow_exec)
    counts = {name: len(getattr(report, name)) for name in ("fetched", "present", "not_kept", "failed")}
    if as_json:
        say_json(counts | {"errors": [str(error) for error in report.failed.values()]})
    else:
        for url in report.not_kept:
            say(f"not cached: {display_url(url)} is local or larger than the cache", err=True)
        for error in report.failed.values():
            say(f"FAILED {error}", err=True)
        counted = [f"{counts['fetched']} downloaded", f"{counts['present']} cached before"]
        say(", ".join([*counted, f"{counts['not_kept']} not cached", f"{counts['failed']} failed"]), err=True)
    if report.failed:
        raise click.exceptions.Exit(max(map(exit_code, report.failed.values())))


@build(_DIRECTORY, JSON)
def ls(directory: str | None = None, as_json: bool = False) -> None:
    """List cached shards: size, time of last use, and origin."""
    entries = _cache(directory, None).entries()
    for entry in entries:
        used = datetime.fromtimestamp(entry.used, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if as_json:
            facts: dict[str, Any] = {"url": entry.url, "file": entry.name, "bytes": entry.size, "used": used}
            say_json(facts)
        else:
            say(f"{entry.size:>14}  {used}  {entry.url or entry.name}")
    if not as_json:
        say(f"{len(entries)} shards, {sum(entry.size for entry in entries)} bytes", err=True)


@build(_DIRECTORY, [flag("--keep", is_flag=True, help="Only report damaged shards.")], JSON)
def verify(directory: str | None = None, keep: bool = False, as_json: bool = False) -> None:
    """Compare cached shards with their digests and remove damaged ones. The exit status is 1 if any is damaged."""
    from tarmac.tools.cache import verify as compare

    report = compare(_cache(directory, None), keep=keep)
    for entry in report.damaged:
        removed = entry.name in report.removed
        if as_json:
            say_json({"url": entry.url, "file": entry.name, "removed": removed})
        else:
            say(f"DAMAGED {entry.url or entry.name}{' (removed)' if removed else ''}")
    say(f"{len(report.intact)} intact, {len(report.damaged)} damaged", err=True)
    if report.damaged:
        raise click.exceptions.Exit(1)


@build(_EVICT, _DIRECTORY, JSON, example="tarmac cache evict --max-bytes 100GB")
def evict(
    shards: tuple[str, ...] = (),
    directory: str | None = None,
    max_bytes: int | None = None,
    everything: bool = False,
    as_json: bool = False,
) -> None:
    """Remove cached shards that are not being read."""
    from tarmac.tools.cache import evict as remove

    if (bool(shards) + (max_bytes is not None) + everything) != 1:
        raise click.UsageError("give one of SHARDS, --max-bytes and --all.")
    report = remove(_cache(directory, max_bytes), shards, everything=everything)
    freed = sum(entry.size for entry in report.removed)
    if as_json:
        counts = {"removed": len(report.removed), "freed": freed, "left": report.left}
        say_json(counts | {"in_use": len(report.in_use), "absent": len(report.absent)})
        return
    for entry in report.in_use:
        say(f"in use: {entry.url or entry.name}", err=True)
    absent = f", {len(report.absent)} were not cached" if report.absent else ""
    say(f"{len(report.removed)} removed, {freed} bytes freed, {report.left} bytes left{absent}", err=True)


for _name, _command in (("warm", warm), ("ls", ls), ("verify", verify), ("evict", evict)):
    command.add_command(_command, _name)


def _cache(directory: str | None, max_bytes: int | None) -> Cache:
    from tarmac import Cache, environment

    directory = directory or environment.cache_dir()
    if not directory:
        raise click.UsageError("no cache directory: give --cache DIR or set WDS_CACHE.")
    size = environment.cache_size()
    return Cache(directory, max_bytes if max_bytes is not None else size if size > 0 else None)
