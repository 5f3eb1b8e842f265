"""`tarmac audit`: the exact order of an epoch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tarmac.cli.command import Group, argument, build, flag
from tarmac.cli.flags import JSON
from tarmac.cli.output import say, say_json
from tarmac.cli.types import COUNT
from tarmac.display import visible

if TYPE_CHECKING:
    from tarmac.tools.audit import Verification

_LOADER: Group = [
    argument("source", "SHARDS...", "A manifest, or shards.", nargs=-1, required=True),
    flag("--batch-size", type=COUNT, required=True, help="Samples per batch of one rank."),
    flag("--world-size", type=COUNT, help="Number of ranks. [default: 1]"),
    flag("--seed", help="Seed of the loader. [default: 0]"),
    flag("--epoch", type=int, help="Number of the epoch. [default: 0]"),
    flag("--position", type=int, help="Position in a saved state of the loader. [default: 0]"),
    flag("--streams", type=COUNT, help="Number of streams. [default: 64]"),
    flag("--window", type=COUNT, help="Shuffle window of a stream, in samples. [default: 16384]"),
    flag("--tail", type=click.Choice(["drop", "pad", "short"]), help="The last batch. [default: drop]"),
    flag("--shuffle/--no-shuffle", help="Shuffle, or keep the order of the shards. [default: shuffle]"),
    flag("--where", metavar="CONDITION", help="Only samples that match."),
]
_QUESTIONS: Group = [
    flag("--step", type=int, help="List what is read at this step."),
    flag("--rank", type=int, help="With --step: only by this rank."),
    flag("--key", help="List when the sample with this key comes."),
    flag("--epochs", type=COUNT, help="With --key: for this many epochs. [default: 1]"),
    flag("--verify", is_flag=True, help="Count that every sample comes exactly once."),
]


@build(_LOADER, _QUESTIONS, JSON, example="tarmac audit train.json --batch-size 64 --world-size 8 --verify")
def command(
    source: tuple[str, ...],
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
    number = seed.removeprefix("-")
    sources: Any = source[0] if len(source) == 1 else list(source)
    audited = audit(sources, seed=int(seed) if number.isdigit() else seed, **options)
    if step is not None:
        _print_rows(audited.step(step, rank), as_json)
    elif key is not None:
        _print_rows(audited.key(key, epochs), as_json)
    elif verify:
        _print_verification(audited.verify(), as_json)
    elif as_json:
        say_json(asdict(audited.summary()))
    else:
        for name, value in asdict(audited.summary()).items():
            say(f"{name.replace('_', ' '):<12} {value}")


def _print_rows(rows: Iterable[Any], as_json: bool) -> None:
    for row in map(asdict, rows):
        if as_json:
            say_json(row)
        else:
            say("\t".join("-" if value is None else visible(str(value)) for value in row.values()))


def _print_verification(result: Verification, as_json: bool) -> None:
    if as_json:
        say_json(result.to_dict())
    elif result.ok:
        say(f"{result.read} of {result.samples} samples come exactly once")
    else:
        examples = ", ".join(map(visible, result.examples))
        say(f"WRONG: {result.repeated} samples are repeated, {result.missing} are missing: {examples}")
    for count, what in (
        (result.skipped, "came before the position"),
        (result.dropped, "are dropped at the end"),
        (result.padded, "come again to fill the last batch"),
    ):
        if count and not as_json:
            say(f"{count} {what}")
    if not as_json:
        say(f"steps of each rank: {', '.join(map(str, sorted(set(result.steps))))}")
    if not result.ok:
        raise click.exceptions.Exit(1)
