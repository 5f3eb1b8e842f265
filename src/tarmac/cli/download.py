"""`tarmac download`: shards from tables of links."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import click

from tarmac.cli.command import argument, build, flag, print_report
from tarmac.cli.flags import LIMITS, OVERWRITE, POST_CMD, RUN, STORAGE
from tarmac.cli.output import say, say_json
from tarmac.cli.types import COUNT, NAMES, NUMBER, PAIRS, SECONDS, SIZE

_read, _write, _web = (partial(flag, group=name) for name in ("Select", "Write", "Access"))

_ROWS = [
    argument(
        "sources", "TABLE...", nargs=-1,
        help="Tables of links: parquet, csv, tsv, jsonl, or txt with a URL per line; directories of tables.",
    ),
    _write("-o", "--output", metavar="PATTERN", required=True, help="x-{i:05d}.tar, or DIR/ for 00000.tar and so on."),
    flag("--url", metavar="COLUMN", help="Column of the URLs. [default: url]"),
    flag("--caption", metavar="COLUMN", help="Column of the texts, for the field txt."),
    flag("--key", metavar="COLUMN", help="Column of the keys. [default: rows are numbered]"),
    flag("--save", type=NAMES, help="Columns to keep in the field json: similarity,LICENSE."),
    flag("--table-format", metavar="FORMAT", help="csv, tsv, jsonl, parquet or lines. [default: from the name]"),
    _write("--rows-per-shard", type=COUNT, help="Rows of the table for each shard. [default: 10000]"),
    _write("--manifest", metavar="FILE", help="The manifest. [default: manifest.json beside the shards]"),
    _write("--html", metavar="FILE", help="Also write a page with plots of rates, errors and sizes."),
    POST_CMD,
]  # fmt: skip
_PICTURES = [
    flag("--size", type=COUNT, help="Length of a side of the pictures. [default: they keep their size]"),
    flag(
        "--resize", type=click.Choice(["keep_ratio", "keep_ratio_largest", "center_crop", "border", "no"]),
        help="What becomes --size long: the shorter side, the longer one, both (cut), both (filled up). "
        "[default: keep_ratio]",
    ),
    flag("--only-if-bigger", is_flag=True, help="Never enlarge pictures."),
    flag("--skip-reencode", is_flag=True, help="Keep the bytes of pictures that need no change."),
    flag("--original", is_flag=True, help="Keep the bytes of all pictures, with their true extension."),
    flag("--format", type=click.Choice(["jpg", "png", "webp"]), help="Format of the pictures. [default: jpg]"),
    flag("--quality", type=NUMBER, help="Quality, or for png the compression from 0 to 9. [default: 95, png 4]"),
    _read("--min-size", type=COUNT, help="Leave out pictures whose shorter side is shorter."),
    _read("--max-aspect", type=float, metavar="RATIO", help="Leave out pictures that are longer and thinner."),
    _read("--max-area", type=COUNT, help="Leave out pictures with more pixels."),
    _read("--dedup", type=click.Choice(["exact", "near"]), help="Leave out copies of bytes, or also of looks."),
    _read("--known", type=NAMES, help="Directories or status files of other downloads, whose pictures count as seen."),
    flag("--blur", metavar="COLUMN", help="Column with boxes to blur: [[0.1,0.1,0.4,0.3]]."),
    flag("--exact", is_flag=True, help="Decode JPEGs at full size, even if a fraction is enough."),
    flag("--no-exif", "exif", is_flag=True, flag_value=False, help="Do not store EXIF data."),
    flag(
        "--digest", type=click.Choice(["xxh3", "md5", "sha256", "sha512"]),
        help="Digest of the downloaded bytes. [default: xxh3]",
    ),
    flag("--verify", metavar="COLUMN", help="Column with the digest that the bytes must have."),
]  # fmt: skip
_WEB = [
    _web("--concurrency", type=COUNT, help="Requests at a time, of each worker. [default: 128]"),
    _web("--host-concurrency", type=COUNT, help="Requests at a time to one host, of all workers. [default: 8]"),
    _web("--host-rate", type=float, metavar="N", help="Requests per second to one host, of all workers."),
    _web("--timeout", type=SECONDS, help="Seconds for a URL, however slowly it answers. [default: 30]"),
    _web("--connect-timeout", type=SECONDS, help="Seconds for a connection. [default: 10]"),
    _web("--shard-timeout", type=SECONDS, help="Seconds for the rows of a shard. [default: 1800]"),
    _web("--max-file-bytes", type=SIZE, help="Largest file that is read. [default: 32MiB]"),
    _web("--url-retries", type=NUMBER, help="Repetitions of a failure that may pass. [default: 2]"),
    _web("--backoff", type=SECONDS, help="Seconds before the first repetition. [default: 1]"),
    _web("--max-wait", type=SECONDS, help="Seconds to wait for a host at the end. [default: 60]"),
    _web("--redirects", type=NUMBER, help="Redirects that are followed. [default: 5]"),
    _web("--user-agent", metavar="TEXT", help="mybot/1.0 (+https://example.org/bot). [default: tarmac/VERSION]"),
    _web("--ignore", type=NAMES, help="Ways to refuse consent to ignore: robots,x-robots-tag,content-signal,tdmrep."),
    _web("--allow-networks", type=NAMES, help="Networks that are not public and allowed: 10.0.0.0/8."),
    _web("--hosts", type=PAIRS, help="Addresses of names: a.example=10.0.0.1."),
    _web("--nameservers", type=NAMES, help="Name servers. [default: those of the system]"),
    _web("--no-verify-tls", "verify_tls", is_flag=True, flag_value=False, help="Accept any certificate."),
    LIMITS,
]  # fmt: skip
_FAILURES = [
    flag("--max-failed", group="Run", type=float, metavar="SHARE", help="Stop if more rows fail. [default: 0.8]"),
    flag(
        "--no-final-retry", "final_retry", group="Run", is_flag=True, flag_value=False,
        help="Do not try failed rows again at the end of the run.",
    ),
    flag(
        "--retry", group="Run", type=NAMES,
        help="Fetch rows again that failed before: transient, failed, or statuses.",
    ),
]  # fmt: skip

_EXAMPLE = (
    "tarmac download laion.parquet -o 'out/{i:05d}.tar' --url URL --caption TEXT --size 384 --only-if-bigger"
)


@build(_ROWS, _PICTURES, OVERWRITE, _WEB, RUN, _FAILURES, STORAGE[1:], example=_EXAMPLE)
def command(as_json: bool, **arguments: Any) -> None:
    """Download the pictures that tables of links name, into shards in the order of the rows.

    Beside each shard, NAME.parquet has the status of every row. Running the same command again fetches only what is
    missing. With --json, lines of numbers come while it runs, and the report at the end.
    """
    import tarmac

    shows = as_json or sys.stderr.isatty()
    given = {"sources": ()} | arguments | ({"live": _json_line if as_json else _line} if shows else {})
    print_report(tarmac.download(**given), as_json)


def _json_line(numbers: dict[str, Any]) -> None:
    say_json({"live": numbers})


def _line(numbers: dict[str, Any]) -> None:
    errors = ", ".join(f"{number} {name}" for name, number in numbers["errors"].items())
    rate, share = numbers["rows_per_second"], numbers["success"]
    say(f"{numbers['rows']} rows, {rate}/s, {share:.1%} fetched{'; ' if errors else ''}{errors}", err=True)
