"""`tarmac export`: samples as files that other programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarmac.cli.command import command as build
from tarmac.cli.command import flag
from tarmac.cli.flags import ACCESS, ERRORS, OVERWRITE, RUN, SELECT, SHARDS, SIZES
from tarmac.cli.types import PAIRS

if TYPE_CHECKING:
    from tarmac import Report

_FORMAT = [
    flag(
        "-o", "--output", group="Write", metavar="PATTERN", required=True,
        help="A file, x-{i:05d}.parquet, {split}.jsonl, DIR/ for a file per shard, a URL, or - for text.",
    ),
    flag(
        "--to", "format", group="Write", metavar="FORMAT",
        help="dir, jsonl, tsv, csv, yaml, parquet, sqlite, lmdb, tfrecord or hf. [default: by the output]",
    ),
    flag("--kinds", group="Write", type=PAIRS, help="What fields hold: caption=text,score=json; int, bytes."),
    flag("--no-key", group="Write", sets="key", is_flag=True, help="Leave out the key."),
    flag("--no-header", group="Write", sets="header", is_flag=True, help="Leave out the column names (tsv, csv)."),
    flag("--hf-split", group="Write", metavar="NAME", help="Name of the split (hf). [default: train]"),
]  # fmt: skip


@build(
    SHARDS, _FORMAT, SIZES, OVERWRITE, SELECT, RUN, ERRORS, ACCESS,
    example="tarmac export 'train-*.tar' -o 'train-{i:05d}.parquet'",
)  # fmt: skip
def command(
    shards: tuple[str, ...], output: str, no_key: bool = False, no_header: bool = False, **options: Any
) -> Report:
    """Export samples to files of another format.

    The extensions of fields tell text, integers and JSON. Other fields are bytes, which jsonl encodes in base64 and
    tsv and csv reject.
    """
    from tarmac import export

    return export(list(shards), output, key=not no_key, header=not no_header, **options)
