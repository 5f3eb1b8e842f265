"""`tarmac audit`: the exact order of an epoch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from tarmac.cli.command import Group, build, flag
from tarmac.cli.flags import ACCESS, JSON, SHARDS, WHERE
from tarmac.cli.output import json_line, say, say_json
from tarmac.cli.types import COUNT, NUMBER
from tarmac.display import visible

_LOADER: Group = [
    flag("--batch-size", type=COUNT, required=True, help="Samples per batch of one rank."),
    flag("--world-size", type=COUNT, help="Number of ranks. [default: 1]"),
    flag("--seed", help="Seed of the loader. [default: 0]"),
    flag("--epoch", type=NUMBER, help="Number of the epoch. [default: 0]"),
    flag("--position", type=NUMBER, help="Position in a saved state of the loader. [default: 0]"),
    flag("--streams", type=COUNT, help="Number of streams. [default: 64]"),
    flag("--window", type=COUNT, help="Shuffle window of a stream, in samples. [default: 16384]"),
    flag(
        "--tail",
        type=click.Choice(["drop", "pad", "short"]),
        help="What to do with an incomplete last batch. [default: drop]",
    ),
    flag("--shuffle/--no-shuffle", help="Shuffle, or keep the order of the shards. [default: shuffle]"),
    WHERE,
]
_QUESTIONS: Group = [
    flag("--step", type=NUMBER, help="List the samples that are read at this step."),
    flag("--rank", type=NUMBER, help="With --step: only the samples of this rank."),
    flag("--key", help="List the steps at which the sample with this key is read."),
    flag("--epochs", type=COUNT, help="With --key: for this many epochs. [default: 1]"),
    flag("--verify", is_flag=True, help="Verify that every sample is read exactly once."),
]


@build(
    SHARDS, _LOADER, _QUESTIONS, JSON, ACCESS,
    example="tarmac audit train.json --batch-size 64 --world-size 8 --verify",
)  # fmt: skip
def command(
    sources: tuple[str, ...],
    step: int | None = None,
    rank: int | None = None,
    key: str | None = None,
    epochs: int = 1,
    verify: bool = False,
    as_json: bool = False,
    seed: str = "0",
    **options: Any,
) -> None:
    """Show the exact order of an epoch of a Loader: a summary, a step, a sample, or a verification.

    Only the index is read. The exit status is 1 if the verification fails.
    """
    from tarmac import audit

    if sum([step is not None, key is not None, verify]) > 1:
        raise click.UsageError("--step, --key and --verify are mutually exclusive.")
    if rank is not None and step is None:
        raise click.UsageError("--rank needs --step.")
    number = seed.removeprefix("-").isdigit()
    audited = audit(list(sources), seed=int(seed) if number else seed, **options)
    if step is not None:
        _print_rows(audited.step(step, rank), as_json)
    elif key is not None:
        _print_rows(audited.key(key, epochs), as_json)
    else:
        report = audited.verify() if verify else audited.summary()
        for line in [json_line(report.to_dict())] if as_json else str(report).split("\n"):
            say(line)
        if not getattr(report, "ok", True):
            raise click.exceptions.Exit(1)


def _print_rows(rows: Iterable[Any], as_json: bool) -> None:
    """Print a line for each row, and the names of the columns as a message."""
    for number, row in enumerate(rows):
        if not (number or as_json):
            say("\t".join(row._fields), err=True)
        if as_json:
            say_json(row._asdict())
        else:
            say("\t".join("-" if value is None else visible(str(value)) for value in row))
