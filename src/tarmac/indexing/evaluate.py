"""Evaluate conditions on Arrow tables. Imports pyarrow, so `where` imports it when needed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tarmac.errors import BadCondition
from tarmac.indexing.grammar import (
    Between,
    Chain,
    Column,
    Comparison,
    Constant,
    In,
    Like,
    Node,
    Unary,
    condition_error,
)
from tarmac.indexing.promote import promote

Type: TypeAlias = Literal["number", "text", "truth", "null"]

_TYPES = {"number": pa.int64(), "text": pa.string(), "truth": pa.bool_()}
_NAMES = {"number": "a number", "text": "text", "truth": "true or false", "null": "null"}
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


class Value(NamedTuple):
    """A column, or a scalar in place of one; numbers are int64 or float64, without NaN."""

    type: Type
    data: Any


_Operand: TypeAlias = tuple[Node, Value]


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

    def error(self, node: Node, what: str) -> BadCondition:
        return condition_error(self.text, node.start, what)


def evaluate(
    tree: Node, table: Any, text: str, names: Mapping[str, str], types: Mapping[str, Any]
) -> NDArray[np.bool_]:
    """Return for each row whether the condition is true; `names` maps its names to columns."""
    result = _truth(tree, Scope(table, text, names, types))
    if isinstance(result, pa.Scalar):
        return np.full(table.num_rows, bool(result.as_py()))
    return np.asarray(pc.fill_null(result, False), dtype=bool)  # noqa: FBT003


def _value(node: Node, scope: Scope) -> Value:
    match node:
        case Constant():
            return _constant(node.value)
        case Column():
            return _column(node, scope)
        case Unary():
            return _unary(node, scope)
        case Chain():
            return _chain(node, scope)
        case Comparison():
            left, right = _value(node.left, scope), _value(node.right, scope)
            return _compare(node, node.operator, (node.left, left), (node.right, right), scope)
        case Between():
            operand = node.operand, _value(node.operand, scope)
            low = _compare(node, ">=", operand, (node.low, _value(node.low, scope)), scope)
            high = _compare(node, "<=", operand, (node.high, _value(node.high, scope)), scope)
            return Value("truth", pc.and_kleene(low.data, high.data))
        case In():
            return _in(node, scope)
        case Like():
            return _like(node, scope)
    raise TypeError(f"unexpected {type(node).__name__}")


def _as(type_: Type, node: Node, scope: Scope) -> Any:
    """Return the data of a part that must have this type; null has every type."""
    value = _value(node, scope)
    if value.type == type_:
        return value.data
    if value.type == "null":
        return _null(type_)
    what = f"{scope.source(node)} is {_NAMES[value.type]}, expected {_NAMES[type_]}"
    raise scope.error(node, what)


def _truth(node: Node, scope: Scope) -> Any:
    return _as("truth", node, scope)


def _null(type_: Type) -> Any:
    return pa.scalar(None, _TYPES.get(type_, pa.int64()))


def _constant(value: bool | int | float | str | None) -> Value:
    if value is None:
        return Value("null", _null("null"))
    if isinstance(value, bool):
        return Value("truth", pa.scalar(value))
    if isinstance(value, str):
        return Value("text", pa.scalar(value, pa.string()))
    return Value("number", pa.scalar(value, pa.int64() if isinstance(value, int) else pa.float64()))


def _column(node: Column, scope: Scope) -> Value:
    name = scope.names[node.name]
    data = scope.table.column(name)
    if data.null_count == len(data):  # shards store columns without values as text
        return Value("null", _null("null"))
    if name in scope.types:
        data = promote(data, scope.types[name])
    if pa.types.is_dictionary(data.type):
        data = data.cast(data.type.value_type)
    type_ = data.type
    if pa.types.is_boolean(type_):
        return Value("truth", data)
    if pa.types.is_integer(type_) and type_ != pa.uint64():
        return Value("number", data.cast(pa.int64()))
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return Value("number", _without_nan(data.cast(pa.float64(), safe=False)))
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return Value("text", data.cast(pa.string()))
    if pa.types.is_binary(type_):  # keys that are not UTF-8
        texts = [None if v is None else v.decode("utf-8", "backslashreplace") for v in data.to_pylist()]
        return Value("text", pa.array(texts, pa.string()))
    raise scope.error(node, f'the column "{name}" has the type {type_}, which conditions do not support')


def _without_nan(data: Any) -> Any:
    return pc.if_else(pc.is_nan(data), pa.scalar(None, pa.float64()), data)


def _unary(node: Unary, scope: Scope) -> Value:
    match node.operator:
        case "not":
            return Value("truth", pc.invert(_truth(node.operand, scope)))
        case "is null":
            return Value("truth", pc.is_null(_value(node.operand, scope).data))
        case "length":
            return Value("number", pc.utf8_length(_as("text", node.operand, scope)).cast(pa.int64()))
        case "lower":
            return Value("text", pc.utf8_lower(_as("text", node.operand, scope)))
        case sign:
            number = _as("number", node.operand, scope)
            return Value("number", number if sign == "+" else _arithmetic("-", pa.scalar(0), number))


def _chain(node: Chain, scope: Scope) -> Value:
    if node.operators[0] in ("and", "or"):
        join = pc.and_kleene if node.operators[0] == "and" else pc.or_kleene
        result = _truth(node.operands[0], scope)
        for operand in node.operands[1:]:
            result = join(result, _truth(operand, scope))
        return Value("truth", result)
    result = _as("number", node.operands[0], scope)
    for operator, operand in zip(node.operators, node.operands[1:], strict=True):
        result = _arithmetic(operator, result, _as("number", operand, scope))
    return Value("number", result)


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


def _compare(node: Node, operator: str, left: _Operand, right: _Operand, scope: Scope) -> Value:
    _check_comparable(node, left, right, scope)
    one, other = left[1], right[1]
    if "null" in (one.type, other.type):
        return Value("truth", _null("truth"))
    sides = [one.data, other.data] if one.data.type == other.data.type else _floats(one.data, other.data)
    return Value("truth", _COMPARE[operator](*sides))


def _check_comparable(node: Node, left: _Operand, right: _Operand, scope: Scope) -> None:
    if len({left[1].type, right[1].type} - {"null"}) > 1:
        sides = (f"{scope.source(side)} ({_NAMES[value.type]})" for side, value in (left, right))
        raise scope.error(node, f"{' and '.join(sides)} cannot be compared")


def _in(node: In, scope: Scope) -> Value:
    value = _value(node.operand, scope)
    items = [(item, _constant(item.value)) for item in node.items if item.value is not None]
    for item in items:
        _check_comparable(node, (node.operand, value), item, scope)
    if value.type == "null":
        return Value("truth", _null("truth"))
    representable = _representable(value.data.type, [item.value for item, _ in items])
    matches = pc.is_in(value.data, value_set=pa.array(representable, value.data.type))
    # As in SQL, a value that is not in a list with a null is neither in it nor not in it.
    otherwise = pa.scalar(False if len(items) == len(node.items) else None, pa.bool_())
    result = pc.if_else(matches, pa.scalar(True), otherwise)  # noqa: FBT003
    return Value("truth", pc.if_else(pc.is_valid(value.data), result, _null("truth")))


def _representable(type_: Any, items: list[Any]) -> list[Any]:
    """Return the items as values of a column's type, without those that it cannot hold."""
    if type_ == pa.int64():
        whole = (int(item) for item in items if math.floor(item) == item)
        return [item for item in whole if -(1 << 63) <= item < 1 << 63]
    return [float(item) for item in items] if type_ == pa.float64() else items


def _like(node: Like, scope: Scope) -> Value:
    data = _as("text", node.operand, scope)
    try:
        matches = pc.match_substring_regex(data, _regex(node.pattern), ignore_case=node.ignore_case)
    except pa.ArrowInvalid as error:
        raise scope.error(node, f"the pattern is too complex ({error})") from None
    return Value("truth", matches)


def _regex(like: str) -> str:
    """Return the pattern as a regular expression; Arrow's `match_like` treats backslashes inconsistently."""
    parts = re.findall(r"(?s)\\.|.", like)
    wild = {"%": ".*", "_": "."}
    return r"(?s)\A" + "".join(wild.get(part) or re.escape(part[-1]) for part in parts) + r"\z"
