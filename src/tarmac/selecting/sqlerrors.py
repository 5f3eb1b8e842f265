"""Turn errors of DuckDB and Spark into errors that name the argument and the position in it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tarmac.errors import BadCondition, TarmacError
from tarmac.indexing.grammar import condition_error
from tarmac.selecting.schemas import unknown_column

_COLUMN = re.compile(r"Referenced column \"(.+?)\" not found|with name `(.+?)` cannot be resolved")
_EXCERPT = re.compile(r"^LINE (\d+): (.*)\n( *)\^", re.MULTILINE)
_POSITION = re.compile(r"line (\d+),? pos (\d+)")
_PREFIX = re.compile(r"^(\w+ Error: |\[[\w.]+\] )")
_CODE = re.compile(r"\s*SQLSTATE: \w+")


class BadEncodingError(Exception):
    """A table has text that is not UTF-8, so it must be repaired."""


def as_value(condition: str, view: str) -> str:
    """Return a query that only an expression passes; it has the condition from the second line on."""
    return f"SELECT (\n{condition}\n) FROM {view}"


def as_filter(condition: str, view: str) -> str:
    """Return a query that only a condition on single rows passes, whose parentheses are balanced."""
    return f"SELECT 1 FROM {view} WHERE\n{condition}\n"


def condition_failed(error: Exception, condition: str, columns: Sequence[str]) -> TarmacError:
    """Return the error for a condition that an engine rejects; SQL has it from the second line on."""
    message, hint = str(error), None
    match = _COLUMN.search(message)
    if match is not None:
        name = (match[1] or match[2]).rpartition("`.`")[2]
        unknown = unknown_column(name, columns, "where")
        what, hint = unknown.what, unknown.hint
        if f'"{name}"' in condition:
            hint = f"single quotes, if it is text: '{name}'."
    else:
        what = _CODE.sub("", _PREFIX.sub("", message.strip()).partition("\n")[0]).rstrip(". ")
        what = re.sub(r"[(;] ?line \d+.*", "", what).rstrip(". ") + "."
        if "explicit cast" in what:
            what = "this compares text with a value that is not text."
            hint = "TRY_CAST(column AS DOUBLE), for numbers in a column of text; `stats` shows the types."
    position = _position(message, condition)
    if position is None:
        return BadCondition(what, hint=hint)
    return condition_error(condition, position, what.rstrip(".?"), hint)


def _position(message: str, condition: str) -> int | None:
    """Return the position in the condition that a message points at."""
    lines = condition.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    if match := _EXCERPT.search(message):
        number, shown = int(match[1]) - 2, match[2]
        column = len(match[3]) - len(f"LINE {match[1]}: ")
        if not 0 <= number < len(lines):
            return len(condition)
        if shown.startswith("..."):  # the beginning of a long line is left out
            excerpt = shown.removeprefix("...").removesuffix("...")
            column += lines[number].find(excerpt) - 3
        return min(starts[number] + max(column, 0), len(condition))
    if match := _POSITION.search(message):
        number, column = int(match[1]) - 2, int(match[2])
        return min(starts[number] + column, len(condition)) if 0 <= number < len(lines) else len(condition)
    return None
