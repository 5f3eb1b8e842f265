"""Parse conditions such as `width >= 512 and lang = 'en'` into a tree.

The language is a subset of SQL: comparisons, `and`, `or`, `not`, `in`, `like`, `between`, `is null`, arithmetic,
and the functions length, lower, number and has. Names may be in double quotes; strings are in single quotes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from tarmac.errors import BadCondition

_MAX_LENGTH, _MAX_DEPTH = 10_000, 32
_SHOWN = 40
"""Characters shown on each side of an error."""
_KEYWORDS = frozenset(("and", "or", "not", "in", "like", "ilike", "between", "is", "null", "true", "false"))
_TOKEN = re.compile(
    r"""(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))
      | (?P<string>'(?:[^']|'')*+')
      | (?P<quoted>"(?:[^"]|"")++")
      | (?P<name>[^\W\d]\w*(?:\.\w+)*)
      | (?P<sign>[<>!=]=|<>|[-=<>()+*/,])
      | (?P<space>\s+)""",
    re.VERBOSE,
)
_COMPARISONS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CONSTANTS = {"null": None, "true": True, "false": False}
_FUNCTIONS = ("length", "lower", "number", "has")


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a condition, with its position in the text.

    The operators are `constant` and `column`, whose value or name is `value`; `not`, `is null`, `length`, `lower`,
    `number`, `+` and `-`, of one operand; `=`, `!=`, `<`, `<=`, `>` and `>=`, of two; `between`, of a value, the
    lowest and the highest; `in`, of a value and constants; `like` and `ilike`, with the pattern in `value`; `and`
    and `or`; and `arithmetic`, with a tuple of the signs between its operands in `value`.

    A long chain of `and`, `or` or signs of equal precedence is one node, so that it does not become a deep tree.
    """

    start: int
    end: int
    operator: str
    operands: tuple[Node, ...] = ()
    value: Any = None


class _Token(NamedTuple):
    """A token; keywords have the type `keyword` and are in lower case."""

    type: str
    text: str
    start: int
    end: int


def condition_error(text: str, position: int, what: str, hint: str | None = None) -> BadCondition:
    """Return an error that points at a position in the condition."""
    first, last = max(0, position - _SHOWN), position + _SHOWN
    before, after = "…" * (first > 0), "…" * (last < len(text))
    excerpt = before + re.sub(r"\s", " ", text[first:last]) + after
    pointer = " " * (position - first + len(before)) + "^"
    end = "\n" if hint else ""
    return BadCondition(
        f"{what}, at character {position + 1} of the condition:\n  {excerpt}\n  {pointer}{end}", hint=hint
    )


def _tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens of a condition, and a last one of type `end`."""
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise condition_error(text, position, _invalid_character(text[position]))
        type_, word = str(match.lastgroup), match.group()
        if type_ == "name" and word.lower() in _KEYWORDS:
            type_, word = "keyword", word.lower()
        if type_ != "space":
            yield _Token(type_, word, position, match.end())
        position = match.end()
    yield _Token("end", "", position, position)


def _invalid_character(character: str) -> str:
    if character in "'\"":
        return f"this {'text' if character == chr(39) else 'name'} has no closing quote"
    if character.isdigit() or character == ".":
        return "invalid number"
    return f'unexpected "{character}"; names with special characters need double quotes'


def _unquote(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])


def parse(text: str) -> tuple[Node, dict[str, int]]:
    """Return the tree of a condition, and the position of each column that it names."""
    if len(text) > _MAX_LENGTH:
        raise BadCondition(f"the condition has {len(text)} characters, more than {_MAX_LENGTH}.")
    parser = _Parser(text)
    tree = parser.condition()
    if parser.current.type != "end":
        parser.fail("and, or, or the end")
    return tree, parser.columns


class _Parser:
    """Recursive descent: one method per precedence, the lowest first."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.columns: dict[str, int] = {}
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    @property
    def current(self) -> _Token:
        return self._tokens[self._next]

    def fail(self, expected: str) -> NoReturn:
        text = self.text[self.current.start : self.current.end][:30]
        got = f'"{text}"' if text else "the end"
        raise condition_error(self.text, self.current.start, f"expected {expected}, got {got}")

    def condition(self) -> Node:
        return self._chain(("or",), lambda: self._chain(("and",), self._negation))

    def _advance(self) -> _Token:
        token = self.current
        self._next += 1
        return token

    def _take(self, *texts: str) -> str | None:
        """Consume and return the next token if it is one of these keywords or signs."""
        if self.current.type in ("keyword", "sign") and self.current.text in texts:
            return self._advance().text
        return None

    def _expect(self, text: str) -> None:
        if not self._take(text):
            self.fail(text)

    def _nested(self, part: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise condition_error(self.text, self.current.start, f"more than {_MAX_DEPTH} levels of nesting")
        node = part()
        self._depth -= 1
        return node

    def _node(self, start: int, operator: str, *operands: Node, value: Any = None) -> Node:
        """Return a node that ends with the last token taken."""
        return Node(start, self._tokens[self._next - 1].end, operator, operands, value)

    def _chain(self, operators: tuple[str, ...], part: Callable[[], Node]) -> Node:
        operands, taken = [part()], []
        while operator := self._take(*operators):
            taken.append(operator)
            operands.append(part())
        if not taken:
            return operands[0]
        if taken[0] in ("and", "or"):
            return self._node(operands[0].start, taken[0], *operands)
        return self._node(operands[0].start, "arithmetic", *operands, value=tuple(taken))

    def _negation(self) -> Node:
        start = self.current.start
        if self._take("not"):
            return self._node(start, "not", self._nested(self._negation))
        return self._predicate()

    def _predicate(self) -> Node:
        left = self._sum()
        if operator := self._take(*_COMPARISONS):
            return self._node(left.start, _COMPARISONS[operator], left, self._sum())
        if self._take("is"):
            negated = self._take("not")
            self._expect("null")
            node = self._node(left.start, "is null", left)
        else:
            negated = self._take("not")
            node = self._membership(left)
            if node is left and negated:
                self.fail("in, like, ilike or between")
        return self._node(left.start, "not", node) if negated else node

    def _membership(self, left: Node) -> Node:
        if self._take("in"):
            self._expect("(")
            items = [self._item()]
            while self._take(","):
                items.append(self._item())
            self._expect(")")
            return self._node(left.start, "in", left, *items)
        if operator := self._take("like", "ilike"):
            if self.current.type != "string":
                self.fail("a pattern in single quotes")
            return self._node(left.start, operator, left, value=_unquote(self._advance().text))
        if self._take("between"):
            low = self._sum()
            self._expect("and")
            return self._node(left.start, "between", left, low, self._sum())
        return left

    def _item(self) -> Node:
        start = self.current.start
        if self._take("-"):
            if self.current.type != "number":
                self.fail("a number")
            return self._node(start, "constant", value=-self._number(self._advance()))
        return self._constant() or self.fail("a number, a string in single quotes, true, false or null")

    def _sum(self) -> Node:
        return self._chain(("+", "-"), lambda: self._chain(("*", "/"), self._signed))

    def _signed(self) -> Node:
        start = self.current.start
        if sign := self._take("-", "+"):
            return self._node(start, sign, self._nested(self._signed))
        return self._primary()

    def _primary(self) -> Node:
        if self._take("("):
            node = self._nested(self.condition)
            self._expect(")")
            return node
        if constant := self._constant():
            return constant
        token = self.current
        if token.type not in ("name", "quoted"):
            self.fail("a column, a number or a string in single quotes")
        self._advance()
        if token.type == "name" and self.current.text == "(" and self.current.type == "sign":
            return self._call(token)
        return self._column(token.start, _unquote(token.text) if token.type == "quoted" else token.text)

    def _constant(self) -> Node | None:
        token = self.current
        value: bool | int | float | str | None
        if token.type == "number":
            value = self._number(token)
        elif token.type == "string":
            value = _unquote(token.text)
        elif token.type == "keyword" and token.text in _CONSTANTS:
            value = _CONSTANTS[token.text]
        else:
            return None
        self._advance()
        return self._node(token.start, "constant", value=value)

    def _number(self, token: _Token) -> int | float:
        if token.text.isdecimal() and len(token.text) < 20 and int(token.text) < 1 << 63:
            return int(token.text)
        value = float(token.text)
        if math.isinf(value):
            raise condition_error(self.text, token.start, "number too large")
        return value

    def _column(self, start: int, name: str) -> Node:
        self.columns.setdefault(name, start)
        return self._node(start, "column", value=name)

    def _call(self, function: _Token) -> Node:
        name = function.text.lower()
        if name not in _FUNCTIONS:
            what = f"unknown function {function.text}; available: {', '.join(_FUNCTIONS)}"
            raise condition_error(self.text, function.start, what)
        self._expect("(")
        if name == "has":
            if self.current.type not in ("name", "quoted", "string", "keyword"):
                self.fail("the name of a field")
            token = self._advance()
            field = token.text if token.type in ("name", "keyword") else _unquote(token.text)
            self._expect(")")
            return self._column(function.start, f"has:{field}")
        operand = self._nested(self._sum)
        self._expect(")")
        return self._node(function.start, name, operand)
