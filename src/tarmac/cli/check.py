"""`tarmac check`: read shards to their ends and report damage."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from tarmac.tools.check import ShardCheck, check

__all__ = ["check_command"]


def check_command(
    shards: Annotated[
        list[str], typer.Argument(metavar="SHARDS...", help="Shards: files, URLs, patterns, -.")
    ],
    require: Annotated[str, typer.Option(help="Fields every sample must have, as jpg,cls.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per shard.")] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Only print shards that are not whole.")
    ] = False,
) -> None:
    """Read every byte of the shards and say which are whole.

    Exit status: 0 all whole, 1 damaged, 3 some could not be read. Example: tarmac check 'train-*.tar'
    """
    results = []
    for result in check(shards, require=[name for name in require.split(",") if name]):
        results.append(result)
        if as_json:
            typer.echo(json.dumps(_as_json(result), ensure_ascii=False))
        elif not (quiet and result.ok):
            typer.echo(_as_line(result))
    bad = [result for result in results if not result.ok]
    if not as_json:
        samples = sum(result.samples for result in results)
        typer.echo(f"{len(results)} shards, {samples} samples, {len(bad)} not whole", err=True)
    if bad:
        raise typer.Exit(3 if all(result.unreachable for result in bad) else 1)


def _as_line(result: ShardCheck) -> str:
    if result.error is not None:
        return f"BAD   {result.error}"
    fields = " ".join(f"{name}:{count}" for name, count in sorted(result.fields.items()))
    skipped = "".join(f", {count} x {reason} skipped" for reason, count in sorted(result.skipped.items()))
    return f"ok    {result.url}: {result.samples} samples, {result.payload} bytes, {fields}{skipped}"


def _as_json(result: ShardCheck) -> dict[str, Any]:
    error = result.error
    record = {name: value for name, value in asdict(result).items() if name != "error"}
    return record | {
        "ok": result.ok,
        "error": None
        if error is None
        else {"kind": type(error).__name__, "offset": error.offset, "text": str(error)},
    }
