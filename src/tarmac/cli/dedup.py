"""`tarmac dedup`."""

from __future__ import annotations

from typing import Any

import click

from tarmac.cli.command import argument, build, flag, print_report
from tarmac.cli.flags import ACCESS, JSON, OVERWRITE
from tarmac.cli.output import say, say_json
from tarmac.cli.types import COUNT

_DEDUP = [
    argument(
        "sources", "SOURCE...", "Directories of embeddings or of an index; with --text also shards.",
        nargs=-1,
    ),
    flag("-o", "--output", metavar="FILE", required=True, help="The list of the keys of the samples that stay."),
    flag("--threshold", type=float, help="Smallest similarity of near duplicates. [default: 0.96, of texts 0.8]"),
    flag(
        "--keep", type=click.Choice(["first", "largest", "score"]),
        help="Which of near duplicates stays. [default: first]",
    ),
    flag("--score", metavar="COLUMN", help="Keep the one of the largest value: aesthetic, or json.quality of shards."),
    flag("--against", metavar="OTHER", help="Also remove what is near a sample of this dataset, such as a test set."),
    flag("--kind", type=click.Choice(["img", "text"]), help="Which vectors, if the directory has both."),
    flag("--text", metavar="NAME", help="Compare texts: a column of the metadata, or a field of shards."),
    flag("--shingle", metavar="PIECES", help="Pieces of texts: chars:N or words:N. [default: chars:5]"),
    flag("--max-pairs", type=COUNT, help="Maximum number of pairs of near duplicates. [default: 50000000]"),
    flag("--why", metavar="KEY", help="Print why this sample stays or is removed, from the last run for -o."),
]  # fmt: skip
_DECIDING = {"threshold", "keep", "score", "against", "kind", "text", "shingle", "max_pairs", "overwrite"}
"""Arguments that say what stays."""


@build(
    _DEDUP, OVERWRITE, JSON, ACCESS,
    example="tarmac dedup embeddings/ --threshold 0.96 -o keep.txt && tarmac copy train.json --keys keep.txt -o clean/",
)  # fmt: skip
def command(as_json: bool = False, **options: Any) -> None:
    """Find near duplicates by their vectors or texts, and list the keys of the samples that stay.

    Every pair is found, and no sample is removed unless it is near one that stays.
    """
    import tarmac
    from tarmac.deduplicating.why import why

    if key := options.pop("why", None):
        ignored = sorted(f"--{name.replace('_', '-')}" for name in options.keys() & _DECIDING)
        if ignored:
            what = f"--why explains the last run for --output, where {', '.join(ignored)} has no effect."
            raise click.UsageError(what)
        explanation = why(options["output"], key)
        if as_json:
            say_json(explanation.to_dict())
        else:
            for line in str(explanation).split("\n"):
                say(line)
        return
    if "sources" not in options:
        raise click.UsageError("Missing argument 'SOURCE...'.")
    print_report(tarmac.dedup(**options), as_json)
