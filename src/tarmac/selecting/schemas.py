"""Find the columns and types that tables have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from tarmac.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 20


def merged_schema(
    schemas: Sequence[tuple[str, pa.Schema]], needed: Callable[[Sequence[str]], Sequence[str]]
) -> pa.Schema:
    """Return the columns of all tables, in the order of the first; numbers get a type that holds all of them.

    Raise if a table lacks a column that is needed, or has other values in it. Columns that some tables lack are left
    out if they are not needed.
    """
    import pyarrow as pa

    first_url, first = schemas[0]
    for url, schema in schemas:
        check_distinct(url, schema.names)
    wanted = set(needed(first.names))
    for _, schema in schemas[1:]:
        wanted |= set(needed(schema.names))
    fields = []
    for name in dict.fromkeys(name for _, schema in schemas for name in schema.names):
        if name not in wanted:
            continue
        kind: Any = None
        for url, schema in schemas:
            if name not in schema.names:
                common = [each for each in first.names if all(each in other.names for _, other in schemas)]
                what = f"the table has no column {name!r}, which other tables have."
                hint = (
                    f"`columns`, with those that all tables have: {', '.join(common)[:200]}."
                    if common
                    else None
                )
                raise UsageError(what, url=url, hint=hint)
            other = plain_type(schema.field(name).type)
            merged = other if kind is None else _common(kind, other)
            if merged is None:
                what = f"the column {name!r} has {other} values, and {kind} values in {first_url}."
                hint = f"`columns` without {name}, or select from each group of tables by itself."
                raise UsageError(what, url=url, hint=hint)
            kind = merged
        fields.append(pa.field(name, pa.string() if pa.types.is_null(kind) else kind))
    return pa.schema(fields)


def check_distinct(url: str, names: Sequence[str]) -> None:
    """Raise if two columns of a table have the same name in SQL."""
    lowered = [name.lower() for name in names]
    twice = sorted({name for name in names if lowered.count(name.lower()) > 1})
    if twice:
        what = f"two columns have the same name in SQL, where case does not matter: {', '.join(twice)}."
        raise UsageError(what, url=url)


def plain_type(kind: Any) -> Any:
    """Return the type of the values, whatever their encoding."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_large_string(kind) or str(kind) == "string_view":
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) or str(kind) == "binary_view" else kind


def _common(one: Any, other: Any) -> Any:
    """Return the type that holds the values of both; None if there is none."""
    import pyarrow as pa

    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    whole, floating = pa.types.is_integer, pa.types.is_floating
    if not all(whole(each) or floating(each) for each in (one, other)):
        return None
    return pa.int64() if whole(one) and whole(other) else pa.float64()


def find_column(name: str, names: Sequence[str], field: str) -> str:
    """Return the column of this name, in any case; raise with a suggestion if there is none."""
    by_name = {each.lower(): each for each in names}
    if (column := by_name.get(name.lower())) is not None:
        return column
    raise unknown_column(name, names, field)


def unknown_column(name: str, names: Sequence[str], field: str) -> UsageError:
    """Return the error for a column that the tables do not have."""
    lowered = {each.lower(): each for each in names}
    close = get_close_matches(name.lower(), lowered, 1)
    guess = f"; did you mean {lowered[close[0]]}?" if close else "."
    more = len(names) - _SHOWN
    listed = ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return UsageError(f"the tables have no column {name!r}{guess}", field=field, hint=f"one of {listed}.")


def is_text(kind: Any) -> bool:
    """Return whether a column holds text."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind))


def hashable(kind: Any) -> bool:
    """Return whether every engine writes the values of a column as the same text."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_integer(kind))
