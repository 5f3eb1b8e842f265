"""Filters by name: what LAION, DataComp and COYO call the columns, and which values count as known.

A value outside the range that it can have is dirt, and treated as missing: a similarity of 6016, a width of 0, NaN.
Sizes are compared by their shorter and longer side, so tables whose width and height are swapped give the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tarmac.errors import UsageError
from tarmac.selecting.dialect import Dialect

SPELLINGS: dict[str, tuple[str, ...]] = {
    "url": ("url", "image_url"),
    "text": ("text", "caption", "alt_text"),
    "width": ("original_width", "width"),
    "height": ("original_height", "height"),
    "language": ("language", "lang"),
    "unsafe": ("punsafe", "nsfw_score_opennsfw2", "nsfw_score_gantman", "nsfw_score"),
    "watermark": ("pwatermark", "watermark_score"),
    "similarity": (
        "similarity",
        "clip_b32_similarity_score",
        "clip_similarity_vitb32",
        "clip_l14_similarity_score",
        "clip_similarity_vitl14",
    ),
    "aesthetic": ("aesthetic", "aesthetic_score", "aesthetic_score_laion_v2"),
}
"""What a column may be called, in lower case; the first of them that a table has is used."""
_MOST_PIXELS = 10**9


@dataclass(frozen=True)
class Predicate:
    """A condition on a row. SQL decides it, unless a value is unknown."""

    name: str
    """The argument that it comes from."""
    passes: str
    """SQL that is true for rows that are kept."""
    unknown: str
    """SQL that is true for rows whose value is missing, and never NULL."""
    columns: tuple[str, ...] = ()
    """The columns that a named filter has matched."""
    shown: Any = None
    """The argument, for the manifest."""


@dataclass(frozen=True)
class _Named:
    """A filter: what it compares, and how."""

    columns: tuple[str, ...]
    value: Callable[..., str]
    """SQL of the value, from the numbers of its columns; NULL if it is unknown."""
    compare: str


def _between(low: float, high: float) -> Callable[[str], str]:
    return lambda value: f"CASE WHEN {value} BETWEEN {low} AND {high} THEN {value} END"


def _sides(width: str, height: str, result: str) -> str:
    known = " AND ".join(f"{side} > 0 AND {side} <= {_MOST_PIXELS}" for side in (width, height))
    return f"CASE WHEN {known} THEN {result} END"


def _shorter(width: str, height: str) -> str:
    return _sides(width, height, f"LEAST({width}, {height})")


def _aspect(width: str, height: str) -> str:
    return _sides(width, height, f"GREATEST({width}, {height}) / LEAST({width}, {height})")


_SIZES = ("width", "height")
FILTERS: dict[str, _Named] = {
    "min_size": _Named(_SIZES, _shorter, ">="),
    "max_aspect": _Named(_SIZES, _aspect, "<="),
    "lang": _Named(("language",), lambda value: value, "IN"),
    "max_text": _Named(("text",), lambda value: f"LENGTH({value})", "<="),
    "max_unsafe": _Named(("unsafe",), _between(0, 1), "<="),
    "max_watermark": _Named(("watermark",), _between(0, 1), "<="),
    "min_similarity": _Named(("similarity",), _between(-1, 1), ">="),
    "min_aesthetic": _Named(("aesthetic",), _between(-100, 100), ">="),
}
_TEXTS = ("language", "text")


def spelled(meaning: str, columns: Iterable[str]) -> str | None:
    """Return the column of a table that has this meaning."""
    by_name = {name.lower(): name for name in columns}
    return next((by_name[name] for name in SPELLINGS[meaning] if name in by_name), None)


def matched(name: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that a filter compares; raise if the table has none."""
    names = []
    for meaning in FILTERS[name].columns:
        column = spelled(meaning, columns)
        if column is None:
            what = (
                f"the tables have no column for it: expected {' or '.join(SPELLINGS[meaning])}, in any case."
            )
            raise UsageError(what, field=name, hint="`where`, with the name of your column.")
        names.append(column)
    return tuple(names)


def named_predicate(
    name: str, argument: Any, texts: Mapping[str, bool], dialect: Dialect, *, keep_unknown: bool
) -> Predicate:
    """Return the condition of a named filter; `texts` are the columns of the tables, and which of them are text."""
    columns, rule = matched(name, list(texts)), FILTERS[name]
    if rule.columns[0] in _TEXTS:
        values = [dialect.cast(dialect.name(column), "string") for column in columns]
    else:
        values = [dialect.number(column, text=texts[column]) for column in columns]
    value = rule.value(*values)
    if name == "lang":
        value = f"NULLIF(LOWER(TRIM({value})), '')"
        languages = ", ".join(dialect.literal(each.strip().lower()) for each in argument)
        passes = f"{value} IN ({languages})"
    else:
        passes = f"{value} {rule.compare} CAST('{float(argument)!r}' AS DOUBLE)"
    unknown = f"({value}) IS NULL"
    if keep_unknown:
        passes, unknown = f"({unknown} OR {passes})", "FALSE"
    return Predicate(name, passes, unknown, columns, argument)
