"""Infer the Arrow type of a metadata column from its values, and the common type over several shards.

Shards are indexed separately, so a column may hold integers in one and floats or text in another. Integers are
promoted to floats, all other mixtures to text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

_MIN_INT, _MAX_INT = -(1 << 63), (1 << 63) - 1


def as_text(value: Any) -> str:
    """Return text unchanged and any other value as JSON, equal for equal values."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def as_array(values: Sequence[bool | int | float | str | None]) -> Any:
    """Return an Arrow array of the narrowest type that holds all values unchanged."""
    import pyarrow as pa

    types = {type(value) for value in values if value is not None}
    if types == {bool}:
        return pa.array(values, pa.bool_())
    if types == {int} and all(v is None or _MIN_INT <= v <= _MAX_INT for v in values):  # type: ignore[operator]
        return pa.array(values, pa.int64())
    if types == {float} or types == {float, int}:
        try:
            return pa.array([None if v is None else float(v) for v in values], pa.float64())
        except OverflowError:  # an integer beyond the largest float
            pass
    return _texts(values)


def _texts(values: Iterable[Any]) -> Any:
    import pyarrow as pa

    texts = [None if value is None else as_text(value) for value in values]
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        # JSON can contain lone surrogates, which Arrow cannot hold: keep them escaped, as \ud800.
        escaped = (None if text is None else text.encode("utf-8", "backslashreplace") for text in texts)
        return pa.array([None if text is None else text.decode() for text in escaped], pa.string())


def common_types(tables: Iterable[Any]) -> dict[str, Any]:
    """Return for each column a type that holds its values in all tables or batches.

    Columns without values do not count, whatever type they are stored as.
    """
    import pyarrow as pa

    types: dict[str, Any] = {}
    for table in tables:
        for name in table.schema.names:
            column = table.column(name)
            own = pa.null() if column.null_count == len(column) else column.type
            types[name] = _common(types.get(name, pa.null()), own)
    return types


def _common(left: Any, right: Any) -> Any:
    import pyarrow as pa

    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if {left, right} == {pa.int64(), pa.float64()}:
        return pa.float64()
    return pa.string()


def promote(column: Any, to: Any) -> Any:
    """Cast a column to a type that `common_types` returned."""
    import pyarrow as pa

    if column.type == to or column.null_count == len(column):
        return column
    if pa.types.is_string(to):
        return _texts(column.to_pylist())
    return column.cast(to, safe=False)  # integers beyond 2^53 are rounded
