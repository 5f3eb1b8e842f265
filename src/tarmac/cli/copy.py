"""`tarmac copy`: concatenate, split, reshard, subset, rename, mix and shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tarmac.cli.command import argument, build, flag
from tarmac.cli.flags import ACCESS, ORDER, RUN, SELECT, WRITE
from tarmac.display import display_url

if TYPE_CHECKING:
    from tarmac import Report

_SOURCES = [
    argument("shards", "[SHARDS...]", "Files, URLs, patterns, @list files, manifests, or -.", nargs=-1),
    flag("--mix", group="Order", metavar="SHARDS=WEIGHT", sets="weights", multiple=True, help="Mix sources."),
    flag(
        "--until", group="Order", type=click.Choice(["first", "all"]),
        help="Stop the mixture when the first source is exhausted, or when all are. [default: all]",
    ),
]  # fmt: skip


@build(
    _SOURCES, SELECT, ORDER, WRITE, RUN, ACCESS,
    example="tarmac copy a.tar b.tar -o 'x-{i:06d}.tar' --max-samples 1e3",
)  # fmt: skip
def command(output: str, shards: tuple[str, ...] = (), mix: tuple[str, ...] = (), **options: Any) -> Report:
    """Copy samples to new shards: all or some, renamed, split, mixed or shuffled."""
    from tarmac import copy

    if bool(shards) == bool(mix):
        raise click.UsageError("expected either SHARDS or --mix.")
    if shards:
        return copy(list(shards), output, **options)
    sources, weights = zip(*map(_weighted, mix), strict=True)
    return copy(sources, output, weights=weights, **options)


def _weighted(item: str) -> tuple[str, float]:
    source, _, weight = item.rpartition("=")
    try:
        return source, float(weight)
    except ValueError:
        raise click.BadParameter(
            f"expected SHARDS=WEIGHT, got {display_url(item)!r}.", param_hint="--mix"
        ) from None
