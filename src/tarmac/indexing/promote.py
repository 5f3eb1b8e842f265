"""The Arrow type of a metadata column: from the values of one shard, and from the types of several.

Shards are indexed one by one, so the same column may hold whole numbers in one and fractions, or text, in
another. Numbers widen to floats; whatever else differs becomes text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["as_array", "as_text", "common_types", "promote"]

_SMALLEST, _LARGEST = -(1 << 63), (1 << 63) - 1


def as_text(value: Any) -> str:
    """Text stays as it is; anything else becomes JSON, the same for equal values."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def as_array(values: Sequence[bool | int | float | str | None]) -> Any:
    """Make an Arrow array of the narrowest type that holds all values without changing any."""
    import pyarrow as pa

    found = {type(value) for value in values if value is not None}
    if found == {bool}:
        return pa.array(values, pa.bool_())
    if found == {int} and all(v is None or _SMALLEST <= v <= _LARGEST for v in values):  # type: ignore[operator]
        return pa.array(values, pa.int64())
    if found == {float} or found == {float, int}:
        try:
            return pa.array([None if v is None else float(v) for v in values], pa.float64())
        except OverflowError:  # a whole number beyond the largest float
            pass
    return _texts(values)


def _texts(values: Iterable[Any]) -> Any:
    import pyarrow as pa

    texts = [None if value is None else as_text(value) for value in values]
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        # JSON can name half a character. Arrow cannot hold it, so it stays as JSON wrote it: \ud800.
        sound = (None if text is None else text.encode("utf-8", "backslashreplace") for text in texts)
        return pa.array([None if text is None else text.decode() for text in sound], pa.string())


def common_types(tables: Iterable[Any]) -> dict[str, Any]:
    """The type of each column that can hold it in all these tables or batches.

    A column of nothing but nulls has no say, whatever type it is stored as.
    """
    import pyarrow as pa

    types: dict[str, Any] = {}
    for table in tables:
        for name in table.schema.names:
            column = table.column(name)
            here = pa.null() if column.null_count == len(column) else column.type
            types[name] = _wider(types.get(name, pa.null()), here)
    return types


def _wider(left: Any, right: Any) -> Any:
    import pyarrow as pa

    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if {left, right} == {pa.int64(), pa.float64()}:
        return pa.float64()
    return pa.string()


def promote(column: Any, to: Any) -> Any:
    """Return a column as one of the types that `common_types` gives."""
    import pyarrow as pa

    if column.type == to or column.null_count == len(column):
        return column
    if pa.types.is_string(to):
        return _texts(column.to_pylist())
    return column.cast(to, safe=False)  # whole numbers beyond 2^53 are rounded
