"""`tarmac combine`."""

from __future__ import annotations

from typing import Any

import click

from tarmac.cli.command import argument, build, flag
from tarmac.cli.flags import MAX_BYTES, OVERWRITE, RUN, STORAGE, TMP
from tarmac.cli.types import COUNT, SIZE

_COMBINE = [
    argument("source", "DIR", "The directory that tarmac tokenize wrote to."),
    flag("-o", "--output", metavar="DIR", help="Directory for the result. [default: DIR/combined]"),
    flag(
        "--format", type=click.Choice(["tarmac", "npy", "tensordict", "megatron", "sidecar"]),
        help="What to write: shards with an index, arrays, files of tensordict or Megatron, or shards beside the data.",
    ),
    flag("--order", type=click.Choice(["shard", "key"]), help="The order of the rows. [default: shard]"),
    flag("--pack", type=COUNT, help="Pack samples into sequences of up to this many tokens."),
    flag("--across-documents", is_flag=True, help="Lay samples end to end and cut every --pack tokens."),
    flag("--partial", is_flag=True, help="Take what an unfinished job has done so far."),
    flag("--delete-parts", is_flag=True, help="Delete the parts when the result is verified."),
    flag("--move", is_flag=True, help="Also move the result to the place of the parts."),
    flag("--block-size", type=COUNT, help="Length of the rows of npy and tensordict. [default: that of tokenize]"),
    flag("--max-rows", type=COUNT, help="Maximum number of rows per shard. [default: 1048576]"),
    MAX_BYTES,
    flag("--record-rows", type=COUNT, help="Maximum number of rows per record. [default: 16384]"),
    flag("--record-bytes", type=SIZE, help="Maximum payload per record. [default: 8MiB]"),
    TMP,
]  # fmt: skip


@build(
    _COMBINE,
    OVERWRITE,
    RUN,
    STORAGE[1:],
    example="tarmac combine tokens/ -o train-tokens/ --format tensordict",
)
def command(source: str, **options: Any) -> Any:
    """Combine the parts that tarmac tokenize wrote into one dataset.

    Each key is kept once. Nothing is deleted before the rows of the result were counted.
    """
    import tarmac

    return tarmac.combine(source, **options)
