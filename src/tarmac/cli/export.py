"""`tarmac export`: export samples to files that other programs read."""

from __future__ import annotations

from collections.abc import Iterable

from tarmac.cli.command import build_verb, flag
from tarmac.cli.flags import ACCESS, ERRORS, OVERWRITE, RUN, SELECT, SHARDS, SIZES
from tarmac.cli.types import PAIRS


def _formats() -> Iterable[str]:
    from tarmac.tools.export import FORMATS

    return FORMATS


_FORMAT = [
    flag(
        "-o", "--output", group="Write", metavar="PATTERN", required=True,
        help="A file, x-{i:05d}.parquet, {split}.jsonl, DIR/ for a file per shard, a URL, or - for text.",
    ),
    flag(
        "--to", "format", group="Write", metavar="FORMAT", names=_formats,
        help="One of {names}. [default: inferred from the output]",
    ),
    flag("--kinds", group="Write", type=PAIRS, help="Types of fields (text, int, json, bytes): cap=text,x=json."),
    flag("--no-key", "key", group="Write", flag_value=False, help="Leave out the key."),
    flag("--no-header", "header", group="Write", flag_value=False, help="Leave out the column names (tsv, csv)."),
    flag("--hf-split", group="Write", metavar="NAME", help="Name of the split (hf). [default: train]"),
]  # fmt: skip

command = build_verb(
    "export", SHARDS, _FORMAT, SIZES, OVERWRITE, SELECT, RUN, ERRORS, ACCESS,
    help="""Export samples to files of another format.

    Field extensions determine which fields are text, integers or JSON. Other fields are bytes, which jsonl encodes
    in base64, and tsv and csv reject.
    """,
    example="tarmac export 'train-*.tar' -o 'train-{i:05d}.parquet'",
)  # fmt: skip
