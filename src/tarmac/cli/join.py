"""`tarmac join`."""

from __future__ import annotations

import click

from tarmac.cli.command import build_verb, flag
from tarmac.cli.flags import ACCESS, ERRORS, RUN, SELECT, SHARDS, TMP, WRITE
from tarmac.cli.types import COLUMNS

_JOIN = [
    flag(
        "--with", "other", metavar="FILES", multiple=True, required=True,
        help="Other shards, or a csv, tsv, jsonl or parquet table.",
    ),
    flag("--key", metavar="COLUMN", help="The column with the keys. [default: __key__ or key]"),
    flag("--columns", type=COLUMNS, help="Columns to add, with new names if given: caption=txt,score."),
    flag(
        "--rows", type=click.Choice(["fields", "json"]),
        help="A field for each column, or one json field. [default: fields]",
    ),
    flag("--prefix", metavar="TEXT", help="Prefix for the names of the new fields; clip makes clip.json."),
    flag(
        "--how", type=click.Choice(["left", "inner"]),
        help="Keep or drop samples without a match. [default: left]",
    ),
    flag("--replace", is_flag=True, help="Replace existing fields."),
    flag(
        "--on-duplicate", type=click.Choice(["error", "first"]),
        help="A key that occurs twice in --with: fail, or take the first. [default: error]",
    ),
    TMP,
]  # fmt: skip

command = build_verb(
    "join", SHARDS, _JOIN, SELECT, WRITE, RUN, ERRORS, ACCESS,
    help="""Add fields from a table or from other shards to the samples with the same key.

    --fields selects from the joined fields.
    """,
    example="tarmac join 'train-*.tar' --with captions.csv --key name -o joined/",
)  # fmt: skip
