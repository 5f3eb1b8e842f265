"""The words of a condition: names, numbers, texts and signs, each with its place; errors that show it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tarmac.errors import BadCondition

__all__ = ["Token", "problem", "tokens", "unquote"]

_SHOWN = 40
_WORDS = frozenset(("and", "or", "not", "in", "like", "ilike", "between", "is", "null", "true", "false"))
_TOKEN = re.compile(
    r"""(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))
      | (?P<string>'(?:[^']|'')*+')
      | (?P<quoted>"(?:[^"]|"")++")
      | (?P<name>[^\W\d]\w*(?:\.\w+)*)
      | (?P<sign>[<>!=]=|<>|[-=<>()+*/,])
      | (?P<space>\s+)""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A word; the words of the language are in lower case and of kind `word`."""

    kind: str
    text: str
    start: int
    end: int


def problem(text: str, at: int, what: str, hint: str | None = None) -> BadCondition:
    """An error that shows the place in the condition."""
    first, last = max(0, at - _SHOWN), at + _SHOWN
    before, after = "…" * (first > 0), "…" * (last < len(text))
    shown = before + re.sub(r"\s", " ", text[first:last]) + after
    mark = " " * (at - first + len(before)) + "^"
    end = "\n" if hint else ""
    return BadCondition(
        f"{what}, at character {at + 1} of the condition:\n  {shown}\n  {mark}{end}", hint=hint
    )


def tokens(text: str) -> Iterator[Token]:
    """Yield the words of a text, and at last one of kind `end`."""
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise problem(text, at, _unreadable(text[at]))
        kind, word = str(found.lastgroup), found.group()
        if kind == "name" and word.lower() in _WORDS:
            kind, word = "word", word.lower()
        if kind != "space":
            yield Token(kind, word, at, found.end())
        at = found.end()
    yield Token("end", "", at, at)


def _unreadable(character: str) -> str:
    if character in "'\"":
        return f"the {'text' if character == chr(39) else 'name'} that begins here has no end"
    if character.isdigit() or character == ".":
        return "this is no number"
    return f'"{character}" has no meaning here; names with other characters need double quotes'


def unquote(text: str) -> str:
    """Take off the quotes, and make each doubled one inside single."""
    return text[1:-1].replace(text[0] * 2, text[0])
