"""The language of conditions: from `width >= 512 and lang = 'en'` to a tree.

It is SQL's: comparisons, `and or not`, `in`, `like`, `between`, `is null`, arithmetic; names in double
quotes, text in single ones. The functions are length, lower and has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from tarmac.errors import BadCondition
from tarmac.indexing.tokens import Token, problem, tokens, unquote

__all__ = [
    "Among",
    "Between",
    "Chain",
    "Column",
    "Comparison",
    "Constant",
    "Like",
    "Node",
    "parse",
    "Unary",
]

_LONGEST, _DEEPEST = 10_000, 32
_COMPARISONS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CONSTANTS = {"null": None, "true": True, "false": False}
_FUNCTIONS = ("length", "lower", "has")


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a condition, and where it stands in the text."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """A number, a text, true, false or null."""

    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Column(Node):
    """A column, by the name that was written."""

    name: str


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """One of: not, -, is null, length, lower."""

    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Chain(Node):
    """Operands joined from left to right by operators of the same rank: and; or; + and -; * and /.

    One node however many there are, so that long chains do not make deep trees.
    """

    operators: tuple[str, ...]
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    """One of = != < <= > >=."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Between(Node):
    """Whether a value is at least `low` and at most `high`; a node of its own, to look at it once."""

    operand: Node
    low: Node
    high: Node


@dataclass(frozen=True, slots=True)
class Among(Node):
    """Whether a value is in a list."""

    operand: Node
    items: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class Like(Node):
    """Whether a text matches a pattern of % (anything) and _ (any character)."""

    operand: Node
    pattern: str
    any_case: bool


def parse(text: str) -> tuple[Node, dict[str, int]]:
    """Return the tree of a condition, and the columns it names with the place of each."""
    if len(text) > _LONGEST:
        raise BadCondition(f"a condition of {len(text)} characters; {_LONGEST} are allowed.")
    parser = _Parser(text)
    tree = parser.condition()
    if parser.now.kind != "end":
        parser.fail("and, or, or the end")
    return tree, parser.columns


class _Parser:
    """Recursive descent; each method takes the tokens of one rank of operators, the loosest first."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.columns: dict[str, int] = {}
        self._tokens = list(tokens(text))
        self._at = 0
        self._depth = 0

    @property
    def now(self) -> Token:
        return self._tokens[self._at]

    def fail(self, expected: str) -> NoReturn:
        found = self.text[self.now.start : self.now.end][:30]
        what = f'"{found}"' if found else "the end"
        raise problem(self.text, self.now.start, f"expected {expected}, found {what}")

    def condition(self) -> Node:
        return self._chain(("or",), lambda: self._chain(("and",), self._negation))

    def _advance(self) -> Token:
        token = self.now
        self._at += 1
        return token

    def _take(self, *texts: str) -> str | None:
        """Take the next token if it is one of these words or signs."""
        if self.now.kind in ("word", "sign") and self.now.text in texts:
            return self._advance().text
        return None

    def _expect(self, text: str) -> None:
        if not self._take(text):
            self.fail(text)

    def _nested(self, part: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise problem(self.text, self.now.start, f"more than {_DEEPEST} levels of nesting")
        node = part()
        self._depth -= 1
        return node

    def _end(self) -> int:
        return self._tokens[self._at - 1].end

    def _chain(self, operators: tuple[str, ...], part: Callable[[], Node]) -> Node:
        operands, taken = [part()], []
        while operator := self._take(*operators):
            taken.append(operator)
            operands.append(part())
        if not taken:
            return operands[0]
        return Chain(operands[0].start, self._end(), tuple(taken), tuple(operands))

    def _negation(self) -> Node:
        start = self.now.start
        if self._take("not"):
            operand = self._nested(self._negation)
            return Unary(start, self._end(), "not", operand)
        return self._predicate()

    def _predicate(self) -> Node:
        left = self._sum()
        if operator := self._take(*_COMPARISONS):
            right = self._sum()
            return Comparison(left.start, self._end(), _COMPARISONS[operator], left, right)
        if self._take("is"):
            negated = self._take("not")
            self._expect("null")
            node: Node = Unary(left.start, self._end(), "is null", left)
        else:
            negated = self._take("not")
            found = self._membership(left)
            if found is None:
                return self.fail("in, like, ilike or between") if negated else left
            node = found
        return Unary(node.start, node.end, "not", node) if negated else node

    def _membership(self, left: Node) -> Node | None:
        if self._take("in"):
            items = self._items()
            return Among(left.start, self._end(), left, items)
        if word := self._take("like", "ilike"):
            if self.now.kind != "string":
                self.fail("a pattern in single quotes")
            pattern = unquote(self._advance().text)
            return Like(left.start, self._end(), left, pattern, word == "ilike")
        if self._take("between"):
            low = self._sum()
            self._expect("and")
            high = self._sum()
            return Between(left.start, self._end(), left, low, high)
        return None

    def _items(self) -> tuple[Constant, ...]:
        self._expect("(")
        items = [self._item()]
        while self._take(","):
            items.append(self._item())
        self._expect(")")
        return tuple(items)

    def _item(self) -> Constant:
        start = self.now.start
        if self._take("-"):
            if self.now.kind != "number":
                self.fail("a number")
            value = -self._number(self._advance())
            return Constant(start, self._end(), value)
        constant = self._constant()
        if constant is None:
            self.fail("a number, a text in single quotes, true, false or null")
        return constant

    def _sum(self) -> Node:
        return self._chain(("+", "-"), lambda: self._chain(("*", "/"), self._signed))

    def _signed(self) -> Node:
        start = self.now.start
        if sign := self._take("-", "+"):
            operand = self._nested(self._signed)
            return Unary(start, self._end(), sign, operand)
        return self._primary()

    def _primary(self) -> Node:
        if self._take("("):
            node = self._nested(self.condition)
            self._expect(")")
            return node
        constant = self._constant()
        if constant is not None:
            return constant
        token = self.now
        if token.kind not in ("name", "quoted"):
            self.fail("a column, a number or a text in single quotes")
        self._advance()
        if token.kind == "name" and self.now.text == "(" and self.now.kind == "sign":
            return self._call(token)
        return self._column(token.start, unquote(token.text) if token.kind == "quoted" else token.text)

    def _constant(self) -> Constant | None:
        token = self.now
        value: bool | int | float | str | None
        if token.kind == "number":
            value = self._number(token)
        elif token.kind == "string":
            value = unquote(token.text)
        elif token.kind == "word" and token.text in _CONSTANTS:
            value = _CONSTANTS[token.text]
        else:
            return None
        self._advance()
        return Constant(token.start, token.end, value)

    def _number(self, token: Token) -> int | float:
        if token.text.isdecimal() and len(token.text) < 20 and int(token.text) < 1 << 63:
            return int(token.text)
        value = float(token.text)
        if math.isinf(value):
            raise problem(self.text, token.start, "this number is too large")
        return value

    def _column(self, start: int, name: str) -> Column:
        self.columns.setdefault(name, start)
        return Column(start, self._end(), name)

    def _call(self, function: Token) -> Node:
        name = function.text.lower()
        if name not in _FUNCTIONS:
            what = f"there is no function {function.text}; there are {', '.join(_FUNCTIONS)}"
            raise problem(self.text, function.start, what)
        self._expect("(")
        if name == "has":
            if self.now.kind not in ("name", "quoted", "string", "word"):
                self.fail("the name of a field")
            token = self._advance()
            field = token.text if token.kind in ("name", "word") else unquote(token.text)
            self._expect(")")
            return self._column(function.start, f"has:{field}")
        operand = self._nested(self._sum)
        self._expect(")")
        return Unary(function.start, self._end(), name, operand)
