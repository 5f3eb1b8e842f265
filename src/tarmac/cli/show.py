"""`tarmac show`: list samples and their fields."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

__all__ = ["show_command"]


def show_command(
    shards: Annotated[
        list[str], typer.Argument(metavar="SHARDS...", help="Shards: files, URLs, patterns, -.")
    ],
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=0, help="Stop after this many samples.")
    ] = None,
    at: Annotated[
        list[int] | None, typer.Option("--at", help="Only the sample of this number; -1 is the last.")
    ] = None,
    info: Annotated[bool, typer.Option("--info", help="Only what a manifest says of the whole.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List samples with the fields they have and their sizes in bytes.

    Example: tarmac show 'train-{000000..000009}.tar' -n 3
    """
    from tarmac.tools.show import show, show_at

    if info:
        for manifest in shards:
            _describe(manifest, as_json)
        return
    for line in show(shards, count=count) if at is None else show_at(_one_or_all(shards), at):
        if as_json:
            typer.echo(json.dumps(asdict(line), ensure_ascii=False))
        else:
            fields = "  ".join(f"{name} {size}" for name, size in line.sizes.items())
            typer.echo(f"{line.key}\t{fields}")


def _one_or_all(shards: list[str]) -> str | list[str]:
    return shards[0] if len(shards) == 1 else shards


def _describe(manifest: str, as_json: bool) -> None:
    from tarmac.tools.show import describe

    found = asdict(describe(manifest))
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        for name, value in found.items():
            typer.echo(f"{name}\t{value}")
