"""`tarmac pack`: shards from files, class folders, recipes, tables and functions."""

from __future__ import annotations

from collections.abc import Iterable

from tarmac.cli.command import argument, build_verb, flag
from tarmac.cli.flags import ERRORS, FIELD_RULE, RUN, SHUFFLE, SPLIT_NAME, SPLITS, STORAGE, WRITE
from tarmac.cli.types import COLUMNS, NAMES, SECONDS


def _formats() -> Iterable[str]:
    from tarmac.tools.pack import SOURCES

    return SOURCES


_SOURCES = [
    argument("sources", "[SOURCE...]", "Directories, recipes, tables, URLs; with --py, its arguments.", nargs=-1),
    flag(
        "--from", "format", metavar="FORMAT", names=_formats,
        help="One of {names}. [default: inferred from the name]",
    ),
    flag(
        "--key", metavar="COLUMN",
        help="Column of a table with the keys. [default: __key__ or key, otherwise rows are numbered]",
    ),
    flag("--columns", type=COLUMNS, help="Columns of a table to take, and their fields: label=cls,caption=txt."),
    flag(
        "--files", type=COLUMNS,
        help="Columns of a table that name files, and their fields: img=jpg, or img to keep each extension.",
    ),
    flag("--base", metavar="DIR", help="Directory of relative file names; by default the directory of the list."),
    flag("--py", "function", metavar="MODULE:FUNCTION", help="A function that yields samples."),
    flag("--require", type=NAMES, help="Fields that every sample must have: jpg|png,cls."),
]  # fmt: skip
_COMMANDS = [
    flag("--timeout", group="Run", type=SECONDS, help="Timeout of each pipe: command."),
]  # fmt: skip

command = build_verb(
    "pack", _SOURCES, FIELD_RULE, SPLITS, SHUFFLE, WRITE, _COMMANDS, RUN, ERRORS, STORAGE, [SPLIT_NAME],
    help="""Pack files, tables or generated samples into shards of 10,000 samples, or as --max-samples
    and --max-bytes set.

    Running the same command again writes only what is missing.
    """,
    example="tarmac pack photos/ -o 'x-{i:06d}.tar'",
)  # fmt: skip
