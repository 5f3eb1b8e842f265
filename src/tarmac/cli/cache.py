"""`tarmac cache`: fill, list, check and empty the directory that remote shards are kept in."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tarmac.cli import flags
from tarmac.cli.output import say, say_json
from tarmac.display import display_url

if TYPE_CHECKING:
    from tarmac.storage import Cache

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Keep remote shards on disk: warm, ls, verify, evict.")

_Directory = Annotated[str, typer.Option("--cache", metavar="DIR", help="The directory; else $WDS_CACHE.")]
_MaxBytes = Annotated[
    int | None, typer.Option("--max-bytes", min=1, help="Bytes to keep at most; else $WDS_CACHE_SIZE.")
]
_AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command("warm")
def warm_command(
    shards: flags.Shards,
    directory: _Directory = "",
    max_bytes: _MaxBytes = None,
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="Downloads at a time.")] = 8,
    as_json: _AsJson = False,
    allow_exec: flags.AllowExec = False,
) -> None:
    """Download shards that are not there yet.

    Exit status: 3 if some could not be fetched. Example: tarmac cache warm 's3://b/x-{000..099}.tar'
    """
    from tarmac.cli import exit_code
    from tarmac.tools.cache import warm

    report = warm(_cache(directory, max_bytes), flags.sources(shards, allow_exec), threads=jobs)
    counts = {name: len(getattr(report, name)) for name in ("fetched", "there", "not_kept", "failed")}
    if as_json:
        errors = [str(error) for error in report.failed.values()]
        say_json(counts | {"errors": errors})
    else:
        for url in report.not_kept:
            say(f"not kept: {display_url(url)} is local or larger than the cache", err=True)
        for error in report.failed.values():
            say(f"FAILED {error}", err=True)
        say(
            f"{counts['fetched']} fetched, {counts['there']} were there already, "
            f"{counts['not_kept']} not kept, {counts['failed']} failed",
            err=True,
        )
    if report.failed:
        raise typer.Exit(max(map(exit_code, report.failed.values())))


@app.command("ls")
def ls_command(directory: _Directory = "", as_json: _AsJson = False) -> None:
    """List what is kept: size, when it was last used, and where it came from."""
    entries = _cache(directory, None).entries()
    for entry in entries:
        used = datetime.fromtimestamp(entry.used, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        told: dict[str, Any] = {"url": entry.url, "file": entry.name, "bytes": entry.size, "used": used}
        if as_json:
            say_json(told)
        else:
            say(f"{entry.size:>14}  {used}  {entry.url or entry.name}")
    if not as_json:
        say(f"{len(entries)} shards, {sum(entry.size for entry in entries)} bytes", err=True)


@app.command("verify")
def verify_command(
    directory: _Directory = "",
    keep: Annotated[bool, typer.Option("--keep", help="Only report damaged ones.")] = False,
    as_json: _AsJson = False,
) -> None:
    """Compare what is kept with the digests it was downloaded with; damaged shards are removed.

    Exit status: 1 if any is damaged.
    """
    from tarmac.tools.cache import verify

    report = verify(_cache(directory, None), keep=keep)
    for entry in report.damaged:
        gone = entry.name in report.removed
        if as_json:
            say_json({"url": entry.url, "file": entry.name, "removed": gone})
        else:
            say(f"DAMAGED {entry.url or entry.name}{' (removed)' if gone else ''}")
    say(f"{len(report.sound)} whole, {len(report.damaged)} damaged", err=True)
    if report.damaged:
        raise typer.Exit(1)


@app.command("evict")
def evict_command(
    shards: Annotated[
        list[str] | None, typer.Argument(metavar="[SHARDS...]", help="Only these; else as the flags say.")
    ] = None,
    directory: _Directory = "",
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=0, help="Remove the least recently used, down to this.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all.")] = False,
    as_json: _AsJson = False,
) -> None:
    """Make room: shards that nobody reads are removed.

    Example: tarmac cache evict --max-bytes 100000000000
    """
    from tarmac.tools.cache import evict

    if (bool(shards) + (max_bytes is not None) + everything) != 1:
        raise typer.BadParameter("say what is to go: shards, or --max-bytes N, or --all")
    cache = _cache(directory, max_bytes or None)
    report = evict(
        cache, flags.sources(shards, None) if shards else [], everything=everything or max_bytes == 0
    )
    freed = sum(entry.size for entry in report.removed)
    if as_json:
        told = {"removed": len(report.removed), "freed": freed, "left": report.left}
        say_json(told | {"in_use": len(report.in_use), "absent": len(report.absent)})
        return
    for entry in report.in_use:
        say(f"in use: {entry.url or entry.name}", err=True)
    absent = f", {len(report.absent)} were not there" if report.absent else ""
    say(f"{len(report.removed)} removed, {freed} bytes freed, {report.left} bytes left{absent}", err=True)


def _cache(directory: str, max_bytes: int | None) -> Cache:
    from tarmac import environment
    from tarmac.errors import UrlError
    from tarmac.storage import Cache

    place = directory or environment.cache_dir()
    if not place:
        raise UrlError("no directory was named.", hint="--cache DIR, or the environment variable WDS_CACHE.")
    size = environment.cache_size()
    return Cache(place, max_bytes if max_bytes is not None else size if size > 0 else None)
