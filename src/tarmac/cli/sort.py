"""`tarmac sort`."""

from __future__ import annotations

import click

from tarmac.cli.command import build_verb, flag
from tarmac.cli.flags import ACCESS, ERRORS, RUN, SELECT, SHARDS, TMP, WRITE
from tarmac.cli.types import SIZE

_SORT = [
    flag("--by", metavar="NAME", help="key, random, a field (cls) or a column (json.score). [default: key]"),
    flag("--type", type=click.Choice(["bytes", "int", "float"]), help="Convert values before comparing."),
    flag("--reverse", is_flag=True, help="Largest values first."),
    flag(
        "--unique", type=click.Choice(["keep", "first", "error"]),
        help="Samples with equal values: keep all or the first, or fail. [default: keep]",
    ),
    flag("--seed", type=int, metavar="N", help="Seed of --by random. [default: 0]"),
    flag("--memory", type=SIZE, help="Memory to sort in. [default: 256MiB]"),
    TMP,
]  # fmt: skip

command = build_verb(
    "sort", SHARDS, _SORT, SELECT, WRITE, RUN, ERRORS, ACCESS,
    help="""Sort samples by key, by a value, or at random; equal values keep their order.

    Samples whose members are not contiguous are regrouped.
    """,
    example="tarmac sort a.tar b.tar --by cls --type int -o 'x-{i:06d}.tar' --max-samples 1e3",
)  # fmt: skip
