"""`tarmac cache`: fill, list, verify and evict the cache of remote shards."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from tarmac.cli.command import Group, argument, build, exit_code, flag, say_report
from tarmac.cli.flags import JSON, SHARDS
from tarmac.cli.output import say, say_json
from tarmac.cli.types import COUNT, SIZE
from tarmac.display import plural

_DIRECTORY: Group = [flag("--cache", metavar="DIR", help="The cache directory. [default: $WDS_CACHE]")]
_MAX_BYTES: Group = [flag("--max-bytes", type=SIZE, help="Size of the cache. [default: $WDS_CACHE_SIZE]")]
_WARM: Group = [
    flag("-j", "--jobs", type=COUNT, help="Number of parallel downloads. [default: 8]"),
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
    cache: str | None = None,
    jobs: int = 8,
    allow_exec: bool = False,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Download shards that are not cached. The exit status is 3 if some could not be downloaded."""
    from tarmac.tools.cache import warm as fill

    report = fill(cache, list(sources), threads=jobs, allow_exec=allow_exec, **options)
    say_report(report, as_json)
    if report.failed:
        raise click.exceptions.Exit(max(map(exit_code, report.failed.values())))


@build(_DIRECTORY, JSON)
def ls(cache: str | None = None, as_json: bool = False) -> None:
    """List cached shards: size, time of last use, and origin."""
    from tarmac.tools.cache import open_cache

    entries = open_cache(cache).entries()
    for entry in entries:
        used = datetime.fromtimestamp(entry.used, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if as_json:
            say_json({"url": entry.url, "file": entry.name, "bytes": entry.size, "used": used})
        else:
            say(f"{entry.size:>14}  {used}  {entry.url or entry.name}")
    if not as_json:
        say(
            f"{plural(len(entries), 'shard')}, {plural(sum(entry.size for entry in entries), 'byte')}",
            err=True,
        )


@build(_DIRECTORY, [flag("--keep", is_flag=True, help="Only report damaged shards.")], JSON)
def verify(cache: str | None = None, as_json: bool = False, **options: Any) -> None:
    """Compare cached shards with their digests and remove damaged ones. The exit status is 1 if any is damaged."""
    from tarmac.tools.cache import verify as compare

    report = compare(cache, **options)
    for entry in report.damaged:
        removed = entry.name in report.removed
        if as_json:
            say_json({"url": entry.url, "file": entry.name, "removed": removed})
        else:
            say(f"DAMAGED {entry.url or entry.name}{' (removed)' if removed else ''}")
    say(str(report), err=True)
    if report.damaged:
        raise click.exceptions.Exit(1)


@build(_EVICT, _DIRECTORY, JSON, example="tarmac cache evict --max-bytes 100GB")
def evict(
    shards: tuple[str, ...] = (),
    cache: str | None = None,
    max_bytes: int | None = None,
    everything: bool = False,
    as_json: bool = False,
) -> None:
    """Remove cached shards that are not being read."""
    from tarmac.tools.cache import evict as remove

    if (bool(shards) + (max_bytes is not None) + everything) != 1:
        raise click.UsageError("expected exactly one of SHARDS, --max-bytes and --all.")
    say_report(remove(cache, shards, max_bytes=max_bytes, everything=everything), as_json)


for _name, _command in (("warm", warm), ("ls", ls), ("verify", verify), ("evict", evict)):
    command.add_command(_command, _name)
