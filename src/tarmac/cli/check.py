"""`tarmac check`: read shards to their ends, report damage, write clean copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tarmac.cli.command import Group, build, flag, with_flags
from tarmac.cli.flags import READ, RUN, SHARDS
from tarmac.cli.output import say, say_json
from tarmac.cli.types import NAMES, NUMBER
from tarmac.display import display_url

if TYPE_CHECKING:
    from tarmac import Report
    from tarmac.tools.check.shard import ShardCheck

_CHECK: Group = [
    flag("--require", type=NAMES, help="Fields that every sample must have: jpg|png,cls."),
    flag("--digests", is_flag=True, help="Compare every field with the index beside its shard."),
    flag("--manifest", metavar="FILE", help="Compare with this manifest and its indexes."),
    flag("--decode", is_flag=True, help="Decode every field of a known type."),
    flag(
        "--decode-as",
        metavar="SPEC",
        help="With --decode: the type that images are decoded to. [default: rgb8]",
    ),
    flag("--duplicates", is_flag=True, help="Find keys that occur more than once."),
    flag("--all-errors", is_flag=True, help="Continue after a bad sample, and list all errors."),
    flag("--max-errors", type=NUMBER, help="Stop when there are more errors than this."),
    flag("--ledger", metavar="FILE", help="Record intact shards here, and do not read them again."),
    flag("-q", "--quiet", is_flag=True, help="Print only shards that are not intact."),
]
_REPAIR: Group = [
    flag(
        "--repair",
        is_flag=True,
        help="Write a clean copy of each damaged shard, and list what could not be recovered.",
    ),
    flag(
        "-o", "--output", sets="repair", metavar="DIR/", help="With --repair: the directory for the copies."
    ),
    flag(
        "--losses",
        metavar="FILE",
        help="With --repair: write the list of lost samples and bytes to this file, as JSON lines.",
    ),
    flag(
        "--intact",
        type=click.Choice(["copy", "link"]),
        help="With --repair: also copy or hard-link the intact shards, so that DIR/ is the whole dataset.",
    ),
    flag("--regroup", is_flag=True, help="With --repair: regroup samples whose members are not contiguous."),
    flag("--overwrite", is_flag=True, help="With --repair: replace existing copies."),
]


@build(SHARDS, _CHECK, _REPAIR, RUN, READ, example="tarmac check 'train-*.tar'")
def command(
    sources: tuple[str, ...],
    decode: bool = False,
    decode_as: str | None = None,
    quiet: bool = False,
    repair: bool = False,
    output: str | None = None,
    as_json: bool = False,
    **options: Any,
) -> Report:
    """Read every byte of the shards and report which are intact.

    The exit status is 0 if all are intact, 1 if some are damaged or samples were lost, 3 if some could not be
    read.
    """
    from tarmac import check

    if repair != (output is not None):
        raise click.UsageError("--repair and -o DIR/ must be used together.")
    if decode_as and not decode:
        raise click.UsageError("--decode-as needs --decode.")

    def print_shard(result: ShardCheck) -> None:
        if as_json:
            say_json(result.to_dict(), err=repair)
        elif not (quiet and result.ok):
            for line in str(result).split("\n"):
                say(with_flags(line), err=repair)

    report = check(list(sources), decode=decode_as or decode, repair=output, on_shard=print_shard, **options)
    for key, urls in report.duplicates.items():
        names = [display_url(url) for url in urls]
        if as_json:
            say_json({"duplicate": key, "shards": names}, err=repair)
        else:
            say(f"DUPLICATE {key}: {', '.join(names)}", err=repair)
    for loss in report.losses if "losses" not in options else ():
        say_json(loss)
    if not as_json:
        return report
    raise click.exceptions.Exit(report.exit_status)  # everything else is printed
