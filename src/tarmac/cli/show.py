"""`tarmac show`: list samples and their fields."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from tarmac.tools.show import show

__all__ = ["show_command"]


def show_command(
    shards: Annotated[
        list[str], typer.Argument(metavar="SHARDS...", help="Shards: files, URLs, patterns, -.")
    ],
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=0, help="Stop after this many samples.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List samples with the fields they have and their sizes in bytes.

    Example: tarmac show 'train-{000000..000009}.tar' -n 3
    """
    for line in show(shards, count=count):
        if as_json:
            typer.echo(json.dumps(asdict(line), ensure_ascii=False))
        else:
            fields = "  ".join(f"{name} {size}" for name, size in line.sizes.items())
            typer.echo(f"{line.key}\t{fields}")
