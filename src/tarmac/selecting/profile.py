"""Profile tables: nulls, distinct values, quantiles, common values and domains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tarmac.display import plural, visible
from tarmac.selecting.filters import spelled
from tarmac.selecting.job import work_directory
from tarmac.selecting.options import Options
from tarmac.selecting.query import AT
from tarmac.selecting.report import SelectReport
from tarmac.selecting.schemas import is_text
from tarmac.selecting.selection import Selection, opened
from tarmac.selecting.sqlerrors import BadEncodingError
from tarmac.storage import StorageOptions

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
TOP = 10
"""Common values and domains that are listed."""
BINS = 40
_KEPT, _LEFT = "tarmac_kept", "tarmac_left"
"""A view of the rows that are left, and a table of their positions."""


@dataclass
class Column:
    """What a column contains. Quantiles are approximate, and so are counts of distinct values."""

    type: str
    nulls: int = 0
    distinct: int = 0
    measure: str = "value"
    """What the quantiles are of: values, or characters of texts."""
    quantiles: dict[str, float] = field(default_factory=dict)
    top: dict[str, int] = field(default_factory=dict)
    """The most common values, if there are few different ones."""
    bins: list[int] = field(default_factory=list)
    """A histogram between the quantiles 0.01 and 0.99."""


@dataclass
class Profile:
    """Statistics of tables."""

    rows: int = 0
    columns: dict[str, Column] = field(default_factory=dict)
    domains: dict[str, int] = field(default_factory=dict)
    """The hosts with the most links."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, for JSON."""
        columns = {
            name: {key: value for key, value in vars(column).items() if value not in ({}, [])}
            for name, column in self.columns.items()
        }
        return {"rows": self.rows, "columns": columns, "domains": self.domains}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield plural(self.rows, "row")
        yield ""
        table = [["column", "type", "nulls", "distinct", "of", *(f"{each:g}" for each in QUANTILES)]]
        for name, column in self.columns.items():
            numbers = [_short(column.quantiles.get(f"{each:g}")) for each in QUANTILES]
            facts = [str(column.nulls), str(column.distinct), column.measure if column.quantiles else ""]
            table.append([visible(name), column.type, *facts, *numbers])
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for name, column in self.columns.items():
            if column.top:
                yield from _listed(f"{visible(name)}:", column.top)
        if self.domains:
            yield from _listed("domains:", self.domains)


def _listed(title: str, counts: dict[str, int]) -> Iterator[str]:
    yield ""
    yield title
    width = max(len(visible(name)) for name in counts)
    yield from (f"  {visible(name).ljust(width)}  {count}" for name, count in counts.items())


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"


def profile_selection(
    options: Options,
    urls: Sequence[str],
    storage: StorageOptions,
    *,
    memory: int,
    jobs: int,
    tmp: str | None,
    plot: str | None,
) -> SelectReport:
    """Profile the rows that a selection would keep, in DuckDB; of duplicates, the first in the tables."""
    settings: dict[str, Any] = {"engine": "duckdb", "memory": memory, "jobs": jobs}
    report = SelectReport("select")
    for repair in (False, True):
        try:
            with (
                work_directory(None, tmp) as folder,
                opened(
                    options, urls, folder, storage, repair=repair, positions=True, **settings
                ) as selection,
            ):
                selection.count()
                rows = selection.count_rest()
                report.read = selection.rows_in + selection.dirt.unreadable_rows
                report.dropped = selection.dirt.unreadable_rows
                report.left_out = selection.rows_in - rows
                report.removed = [step.to_json() for step in selection.steps]
                report.dirt = selection.dirt.counts()
                report.profile = _profile(selection, rows)
            break
        except BadEncodingError:
            if repair:
                raise
    report.remarks = report.lines()
    _draw(report.profile, plot, storage)
    return report


def profile_files(
    urls: Sequence[str], storage: StorageOptions, *, memory: int, jobs: int, tmp: str | None, plot: str | None
) -> Profile:
    """Profile files that a selection has written."""
    settings: dict[str, Any] = {"engine": "duckdb", "memory": memory, "jobs": jobs}
    with (
        work_directory(None, tmp) as folder,
        opened(Options(), urls, folder, storage, **settings) as selection,
    ):
        selection.count()
        result = _profile(selection, selection.selected)
    _draw(result, plot, storage)
    return result


def _draw(profile: Profile | None, plot: str | None, storage: StorageOptions) -> None:
    if plot is not None and profile is not None:
        from tarmac.selecting.plot import write_plot

        write_plot(profile, plot, storage)


def _profile(selection: Selection, rows: int) -> Profile:
    engine, query = selection.engine, selection.query
    kept = query.positioned()
    if query.dedup or query.options.most is not None:  # not again for each number of each column
        engine.fetch(f"CREATE TEMP TABLE {_LEFT} AS SELECT {AT} FROM ({query.unique(sampled=True)}) AS u")
        kept = f"SELECT * FROM ({kept}) AS k WHERE {AT} IN (SELECT {AT} FROM {_LEFT})"
    engine.add_view(_KEPT, kept)
    result = Profile(rows)
    for name, new in query.columns.items():
        result.columns[new] = _column(selection, name)
    if (url := spelled("url", query.columns)) is not None and is_text(query.kinds[url]):
        host = f"regexp_extract(lower({engine.dialect.name(url)}), '^[a-z]+://([^/:?#]+)', 1)"
        result.domains = _counts(selection, host, f"{host} <> ''")
    return result


def _column(selection: Selection, name: str) -> Column:
    import pyarrow as pa

    engine, kind = selection.engine, selection.query.kinds[name]
    quoted, column = engine.dialect.name(name), Column(str(kind))
    text = is_text(kind)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    value = f"CAST(length({quoted}) AS DOUBLE)" if text else engine.dialect.number(name, text=False)
    distinct = f"approx_count_distinct({quoted})" if not pa.types.is_nested(kind) else "0"
    facts = f"SELECT count(*) - count({quoted}), {distinct} FROM {_KEPT}"
    ((column.nulls, column.distinct),) = engine.fetch(facts)
    if text or number:
        column.measure = "characters" if text else "value"
        wanted = ", ".join(f"{each:g}" for each in QUANTILES[1:-1])
        numbers = f"SELECT {value} AS v FROM {_KEPT}"
        query = f"SELECT min(v), approx_quantile(v, [{wanted}]), max(v) FROM ({numbers}) AS n"
        ((low, middle, high),) = engine.fetch(query)
        if low is not None:
            values = [low, *middle, high]
            column.quantiles = {
                f"{each:g}": quantile for each, quantile in zip(QUANTILES, values, strict=True)
            }
            column.bins = _bins(selection, numbers, middle[0], middle[-1])
    if not number and column.distinct <= TOP * 100 and not pa.types.is_nested(kind):
        column.top = _counts(selection, f"CAST({quoted} AS VARCHAR)", f"{quoted} IS NOT NULL")
    return column


def _bins(selection: Selection, numbers: str, low: float, high: float) -> list[int]:
    """Return a histogram of the values between two of them."""
    if not low < high:
        return []
    width = f"CAST({(high - low) / BINS!r} AS DOUBLE)"
    number = f"least(CAST(floor((v - CAST({low!r} AS DOUBLE)) / {width}) AS INT), {BINS - 1})"
    inside = f"v BETWEEN CAST({low!r} AS DOUBLE) AND CAST({high!r} AS DOUBLE)"
    counts = [0] * BINS
    for index, count in selection.engine.fetch(
        f"SELECT {number}, count(*) FROM ({numbers}) AS n WHERE {inside} GROUP BY 1"
    ):
        counts[max(index, 0)] += count
    return counts


def _counts(selection: Selection, value: str, condition: str) -> dict[str, int]:
    """Return the most common values."""
    query = f"SELECT {value}, count(*) AS n FROM {_KEPT} WHERE {condition} GROUP BY 1 ORDER BY n DESC, 1 LIMIT {TOP}"
    return {str(name): count for name, count in selection.engine.fetch(query)}
