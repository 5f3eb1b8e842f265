"""`tarmac select`."""

from __future__ import annotations

from typing import Any

import click

from tarmac.cli.command import Group, argument, build, flag, print_report
from tarmac.cli.flags import JSON, OVERWRITE, TMP
from tarmac.cli.output import say
from tarmac.cli.types import COLUMNS, COUNT, NAMES, SAMPLE, SIZE, settings

_TABLES: Group = [
    argument(
        "sources", "TABLES...", "Parquet, CSV, TSV and JSON-lines files, also .gz and .zst; patterns; directories.",
        nargs=-1, required=True,
    )
]  # fmt: skip
_SELECT: Group = [
    flag("-o", "--output", metavar="DIR", help="Directory for the selected rows."),
    flag("--where", multiple=True, metavar="SQL", help="A condition in SQL: 'WIDTH >= 1024'. Can be repeated."),
    flag("--columns", type=COLUMNS, help="Columns to write, with new names if given: URL=url,TEXT."),
    flag("--dedup", type=NAMES, help="Keep the first of rows that are equal in these columns: URL,TEXT."),
    flag("--join", metavar="TABLES", help="Tables whose columns are added."),
    flag("--on", metavar="COLUMN", help="The column to join by."),
    flag("--how", type=click.Choice(["inner", "left"]), help="Remove rows without a partner, or keep them."),
    flag("--sample", type=SAMPLE, help="A share of the rows, 0.1, or a number of them, 1000."),
    flag("--stats", is_flag=True, help="Print nulls, quantiles, common values and domains of the selected rows."),
    flag("--plot", metavar="FILE", help="Draw these statistics into a picture (.png, .jpg, .webp)."),
    flag("--shuffle", group="Order", type=int, metavar="SEED", help="Shuffle the rows."),
    flag("--key", group="Order", type=NAMES, help="Columns that tell rows apart. [default: --dedup, or URL,TEXT]"),
    flag("--rows-per-file", group="Write", type=COUNT, help="Rows of each file but the last. [default: 1000000]"),
]  # fmt: skip
_FILTERS: Group = [
    flag("--min-size", group="Select", type=COUNT, help="Shortest side, in pixels."),
    flag("--max-aspect", group="Select", type=float, help="Longer side divided by the shorter one."),
    flag("--lang", group="Select", type=NAMES, help="Languages: en, or en,de."),
    flag("--max-text", group="Select", type=COUNT, help="Characters of the caption."),
    flag("--max-unsafe", group="Select", type=float, help="Probability that an image is unsafe."),
    flag("--max-watermark", group="Select", type=float, help="Probability of a watermark."),
    flag("--min-similarity", group="Select", type=float, help="Similarity of image and caption."),
    flag("--min-aesthetic", group="Select", type=float, help="Aesthetic score."),
    flag(
        "--nulls", group="Select", type=click.Choice(["drop", "keep"]),
        help="What these filters do with missing values. [default: drop]",
    ),
]  # fmt: skip
_RUN: Group = [
    flag("--engine", group="Run", metavar="NAME", help="duckdb, spark or spark://HOST:PORT. [default: duckdb]"),
    flag("-j", "--jobs", group="Run", type=COUNT, help="Number of threads. [default: the number of cores]"),
    flag("--memory", group="Run", type=SIZE, help="Memory that DuckDB and this process may use. [default: 2GiB]"),
    TMP,
    *JSON,
    flag(
        "--storage", group="Access", type=settings("StorageOptions"),
        help="Storage settings, such as idle_timeout=60,retries=20.",
    ),
]  # fmt: skip


@build(
    _TABLES, _SELECT, _FILTERS, OVERWRITE, _RUN,
    example="tarmac select laion2B/ -o laion2B-big --min-size 1024 --shuffle 0",
)  # fmt: skip
def command(as_json: bool = False, **options: Any) -> None:
    """Select rows of tables of links: filter, join, deduplicate, sample and shuffle, in DuckDB or Spark."""
    import tarmac

    report = tarmac.select(**options)
    if report.profile is not None and not as_json:
        for line in str(report.profile).split("\n"):
            say(line)
    print_report(report, as_json)
