"""Evaluate conditions on Arrow tables. Imports pyarrow, so `where` imports it when needed.

Every part of a condition becomes a column, or a scalar that represents one: int64, float64 without NaN, string,
bool, or a scalar of type null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tarmac.errors import BadCondition
from tarmac.indexing.grammar import Node, condition_error
from tarmac.indexing.promote import promote

_NUMBER, _TEXT, _TRUTH, _NULL = "a number", "text", "true or false", "null"
_KINDS = {
    pa.int64(): _NUMBER,
    pa.float64(): _NUMBER,
    pa.string(): _TEXT,
    pa.bool_(): _TRUTH,
    pa.null(): _NULL,
}
_NULLS = {
    _NUMBER: pa.scalar(None, pa.int64()),
    _TEXT: pa.scalar(None, pa.string()),
    _TRUTH: pa.scalar(None, pa.bool_()),
}
_COMPARE = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_SHOWN = 40
_CHECKED = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}


class Scope(NamedTuple):
    """What a condition is evaluated on."""

    table: Any
    text: str
    names: Mapping[str, str]
    types: Mapping[str, Any]

    def source(self, node: Node) -> str:
        """Return a part of the condition as the user wrote it."""
        text = self.text[node.start : node.end]
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

    def error(self, node: Node, what: str, text: Node | None = None) -> BadCondition:
        """Return an error at a part of the condition; `text` is a part that could be converted to numbers."""
        hint = f"number({self.source(text)}), which is null for text that is not a number." if text else None
        return condition_error(self.text, node.start, what, hint)


def evaluate(
    tree: Node, table: Any, text: str, names: Mapping[str, str], types: Mapping[str, Any]
) -> NDArray[np.bool_]:
    """Return for each row whether the condition is true; `names` maps its names to columns."""
    result = _as(_TRUTH, tree, Scope(table, text, names, types))
    if isinstance(result, pa.Scalar):
        return np.full(table.num_rows, bool(result.as_py()))
    return np.asarray(pc.fill_null(result, False), dtype=bool)  # noqa: FBT003


def _value(node: Node, scope: Scope) -> Any:
    match node.operator, node.operands:
        case "constant", _:
            return pa.scalar(node.value)
        case "column", _:
            return _column(node, scope)
        case "not", (operand,):
            return pc.invert(_as(_TRUTH, operand, scope))
        case "is null", (operand,):
            return pc.is_null(_value(operand, scope))
        case "length", (operand,):
            return pc.utf8_length(_as(_TEXT, operand, scope)).cast(pa.int64())
        case "lower", (operand,):
            return pc.utf8_lower(_as(_TEXT, operand, scope))
        case "number", (operand,):
            value = _value(operand, scope)
            return _numbers(value) if _KINDS[value.type] == _TEXT else _as(_NUMBER, operand, scope)
        case "+", (operand,):
            return _as(_NUMBER, operand, scope)
        case "-", (operand,):
            return _arithmetic("-", pa.scalar(0), _as(_NUMBER, operand, scope))
        case "and" | "or" as operator, (first, *rest):
            join = pc.and_kleene if operator == "and" else pc.or_kleene
            result = _as(_TRUTH, first, scope)
            for operand in rest:
                result = join(result, _as(_TRUTH, operand, scope))
            return result
        case "arithmetic", (first, *rest):
            result = _as(_NUMBER, first, scope)
            for sign, operand in zip(node.value, rest, strict=True):
                result = _arithmetic(sign, result, _as(_NUMBER, operand, scope))
            return result
        case "between", (operand, low, high):
            value = _value(operand, scope)
            above = _compare(node, ">=", (operand, value), (low, _value(low, scope)), scope)
            below = _compare(node, "<=", (operand, value), (high, _value(high, scope)), scope)
            return pc.and_kleene(above, below)
        case "in", (operand, *items):
            return _in(node, operand, items, scope)
        case "like" | "ilike", (operand,):
            return _like(node, operand, scope)
        case operator, (left, right):
            return _compare(node, operator, (left, _value(left, scope)), (right, _value(right, scope)), scope)
    raise TypeError(f"unexpected {node.operator}")


def _as(kind: str, node: Node, scope: Scope) -> Any:
    """Return the value of a part that must be of this kind; null is of every kind."""
    value = _value(node, scope)
    value = _as_numbers(node, value, scope) if kind == _NUMBER else value
    actual = _KINDS[value.type]
    if actual == kind:
        return value
    if actual == _NULL:
        return _NULLS[kind]
    text = node if (actual, kind) == (_TEXT, _NUMBER) else None
    raise scope.error(node, f"{scope.source(node)} is {actual}, expected {kind}", text)


def _as_numbers(node: Node, value: Any, scope: Scope) -> Any:
    """Return a column of text as numbers if that is what all its values are, as in `cls.txt` or `score.json`.

    A column that is text only because another shard holds text would be numbers in one shard and not in another.
    """
    if node.operator != "column" or _KINDS[value.type] != _TEXT:
        return value
    stored = scope.table.column(scope.names[node.value]).type
    if not (pa.types.is_string(stored) or pa.types.is_large_string(stored) or pa.types.is_dictionary(stored)):
        return value
    trimmed = pc.utf8_trim_whitespace(value)
    empty = pc.is_in(trimmed, value_set=pa.array(["", "null"]))
    return _numbers(value) if pc.all(pc.or_(_is_number(trimmed), empty)).as_py() else value


def _is_number(text: Any) -> Any:
    return pc.match_substring_regex(text, r"\A[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\z")


def _numbers(texts: Any) -> Any:
    """Return text as numbers; text that is not a number becomes null."""
    trimmed = pc.utf8_trim_whitespace(texts)
    digits = pc.if_else(_is_number(trimmed), pc.utf8_ltrim(trimmed, "+"), _NULLS[_TEXT])
    try:
        return digits.cast(pa.int64())
    except pa.ArrowInvalid:  # not all are integers of 64 bits
        return digits.cast(pa.float64())


def _column(node: Node, scope: Scope) -> Any:
    name = scope.names[node.value]
    data = scope.table.column(name)
    if data.null_count == len(data):  # shards store columns without values as text
        return pa.scalar(None)
    if name in scope.types:
        data = promote(data, scope.types[name])
    if pa.types.is_dictionary(data.type):
        data = data.cast(data.type.value_type)
    type_ = data.type
    if pa.types.is_boolean(type_):
        return data
    if pa.types.is_integer(type_) and type_ != pa.uint64():
        return data.cast(pa.int64())
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return _without_nan(data.cast(pa.float64(), safe=False))
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return data.cast(pa.string())
    if pa.types.is_binary(type_):  # keys that are not UTF-8
        texts = [None if v is None else v.decode("utf-8", "backslashreplace") for v in data.to_pylist()]
        return pa.array(texts, pa.string())
    raise scope.error(node, f'the column "{name}" has the type {type_}, which conditions do not support')


def _without_nan(data: Any) -> Any:
    return pc.if_else(pc.is_nan(data), pa.scalar(None, pa.float64()), data)


def _arithmetic(operator: str, left: Any, right: Any) -> Any:
    if operator == "/":
        left, right = _floats(left, right)
        right = pc.if_else(pc.equal(right, 0.0), pa.scalar(None, pa.float64()), right)
        return _without_nan(pc.divide(left, right))
    if left.type == right.type == pa.int64():
        try:
            return _CHECKED[operator](left, right)
        except pa.ArrowInvalid:  # more than 64 bits
            pass
    return _without_nan(_CHECKED[operator](*_floats(left, right)))


def _floats(*values: Any) -> list[Any]:
    # Unsafe, so that integers beyond 2^53 are rounded instead of rejected.
    return [value.cast(pa.float64(), safe=False) for value in values]


def _compare(node: Node, operator: str, left: tuple[Node, Any], right: tuple[Node, Any], scope: Scope) -> Any:
    if _KINDS[right[1].type] == _NUMBER:
        left = left[0], _as_numbers(*left, scope)
    elif _KINDS[left[1].type] == _NUMBER:
        right = right[0], _as_numbers(*right, scope)
    if _NULL in _check_comparable(node, left, right, scope):
        return _NULLS[_TRUTH]
    sides = [left[1], right[1]]
    return _COMPARE[operator](*(sides if sides[0].type == sides[1].type else _floats(*sides)))


def _check_comparable(
    node: Node, left: tuple[Node, Any], right: tuple[Node, Any], scope: Scope
) -> tuple[str, str]:
    """Return the kinds of two values; raise unless they are equal or one is null."""
    one, other = _KINDS[left[1].type], _KINDS[right[1].type]
    if one != other and _NULL not in (one, other):
        what = f"{scope.source(left[0])} ({one}) and {scope.source(right[0])} ({other}) cannot be compared"
        text = {(_TEXT, _NUMBER): left[0], (_NUMBER, _TEXT): right[0]}.get((one, other))
        raise scope.error(node, what, text if text and text.operator != "constant" else None)
    return one, other


def _in(node: Node, operand: Node, items: list[Node], scope: Scope) -> Any:
    value = _value(operand, scope)
    if any(_KINDS[pa.scalar(item.value).type] == _NUMBER for item in items):
        value = _as_numbers(operand, value, scope)
    for item in items:
        _check_comparable(node, (operand, value), (item, pa.scalar(item.value)), scope)
    if value.type == pa.null():
        return _NULLS[_TRUTH]
    values = [item.value for item in items if item.value is not None]
    matches = pc.is_in(value, value_set=pa.array(_representable(value.type, values), value.type))
    # As in SQL, a value that is not in a list with a null is neither in it nor not in it.
    otherwise = pa.scalar(False if len(values) == len(items) else None, pa.bool_())
    result = pc.if_else(matches, pa.scalar(True), otherwise)  # noqa: FBT003
    return pc.if_else(pc.is_valid(value), result, _NULLS[_TRUTH])


def _representable(type_: Any, items: list[Any]) -> list[Any]:
    """Return the items as values of a column's type, without those that it cannot hold."""
    if type_ == pa.int64():
        whole = (int(item) for item in items if math.floor(item) == item)
        return [item for item in whole if -(1 << 63) <= item < 1 << 63]
    return [float(item) for item in items] if type_ == pa.float64() else items


def _like(node: Node, operand: Node, scope: Scope) -> Any:
    data = _as(_TEXT, operand, scope)
    try:
        return pc.match_substring_regex(data, _regex(node.value), ignore_case=node.operator == "ilike")
    except pa.ArrowInvalid as error:
        raise scope.error(node, f"the pattern is too complex ({error})") from None


def _regex(like: str) -> str:
    """Return the pattern as a regular expression; Arrow's `match_like` treats backslashes inconsistently."""
    parts = re.findall(r"(?s)\\.|.", like)
    wild = {"%": ".*", "_": "."}
    return r"(?s)\A" + "".join(wild.get(part) or re.escape(part[-1]) for part in parts) + r"\z"
